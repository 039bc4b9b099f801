// Adds what the pointer shows: a page without scripts says the same in its figures, titles and tables.
(() => {
  "use strict";
  const tip = document.createElement("div");
  tip.id = "tip";
  tip.setAttribute("role", "status");
  tip.hidden = true;
  document.body.append(tip);

  const show = (lines, event) => {
    tip.replaceChildren();
    lines.forEach((line, index) => {
      const element = document.createElement(index === 0 ? "strong" : "span");
      element.textContent = line;
      tip.append(element);
    });
    tip.hidden = false;
    const margin = 12, width = tip.offsetWidth, height = tip.offsetHeight;
    const right = event.clientX + margin + width > window.innerWidth;
    const below = event.clientY + margin + height > window.innerHeight;
    tip.style.left = Math.max(4, right ? event.clientX - margin - width : event.clientX + margin) + "px";
    tip.style.top = Math.max(4, below ? event.clientY - margin - height : event.clientY + margin) + "px";
  };
  const hide = () => { tip.hidden = true; };

  // Titles of shapes become tips at once, instead of after a while.
  document.querySelectorAll("svg title").forEach((title) => {
    const shape = title.parentElement;
    const cut = title.textContent.indexOf(": ");
    const lines = cut < 0 ? [title.textContent]
      : [title.textContent.slice(0, cut), ...title.textContent.slice(cut + 2).split("; ")];
    title.remove();
    shape.addEventListener("pointermove", (event) => show(lines, event));
    shape.addEventListener("pointerleave", hide);
  });

  const series = JSON.parse(document.getElementById("series").textContent);
  const number = (value, digits) => value === null ? "none" : Number(value).toPrecision(digits);
  const nearest = (step) => {
    let low = 0, high = series.step.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (series.step[middle] < step) low = middle; else high = middle;
    }
    return Math.abs(series.step[low] - step) <= Math.abs(series.step[high] - step) ? low : high;
  };
  document.querySelectorAll(".plot[data-series]").forEach((plot) => {
    if (series.step.length === 0) return;
    const area = plot.querySelector(".area"), line = document.createElement("div");
    line.className = "cursor";
    line.hidden = true;
    area.append(line);
    const low = Number(plot.dataset.low), high = Number(plot.dataset.high);
    area.addEventListener("pointermove", (event) => {
      const box = area.getBoundingClientRect();
      const at = nearest(low + (event.clientX - box.left) / box.width * (high - low));
      line.style.left = 100 * (series.step[at] - low) / (high - low) + "%";
      line.hidden = false;
      show(["step " + series.step[at], "loss " + number(series.loss[at], 5),
        "gradient norm " + number(series.grad_norm[at], 4), "learning rate " + number(series.lr[at], 3),
        number(series.ms[at], 4) + " ms, " + series.mode[at]], event);
    });
    area.addEventListener("pointerleave", () => { line.hidden = true; hide(); });
  });
})();
