// SPDX-License-Identifier: Apache-2.0
#include <encore/kernels/embedding.hpp>

#include "kernel_run.hpp"
#include "random_values.hpp"
#include "typed.hpp"

using namespace encore;
using namespace encore::tests;

namespace {

/// Columns of a table's rows [begin, end).
std::vector<double> rows_of(const std::vector<double>& table, std::int64_t columns, std::int64_t begin,
                            std::int64_t end) {
  return {table.begin() + begin * columns, table.begin() + end * columns};
}

/// Many tokens of few ids, so that runs cross the ends of chunks, in and out of every part.
constexpr std::int64_t tokens = 300, hidden = 70, vocabulary = 11;
constexpr std::int64_t ends[] = {0, 4, 5, 11};

}  // namespace

TEST_CASE("the embeddings from parts of a table add up to those from the whole") {
  for_each_space_and_type([]<class Space, class T>(Types<Space, T>) {
    const auto table = normal_values<T>(vocabulary * hidden, 1);
    const auto ids = integer_values(tokens, 0, vocabulary - 1, 7);
    KernelRun<Space> run;
    const auto id_view = run.template input<std::int32_t>(ids);
    for (int part = 0; part < 3; ++part) {
      const std::int64_t begin = ends[part], end = ends[part + 1];
      const auto view = run.template input<T>(rows_of(table, hidden, begin, end), hidden);
      const auto output = run.template output<T>(tokens, hidden);
      run.execute(
          [&] { kernels::embedding_forward<Space, T>(run.stream(), id_view, view, {}, 16, output, begin); });
      const auto result = run.values(output);
      std::vector<double> expected(tokens * hidden, 0.0);
      for (std::int64_t t = 0; t < tokens; ++t)
        for (std::int64_t c = 0; c < hidden && ids[t] >= begin && ids[t] < end; ++c)
          expected[t * hidden + c] = table[ids[t] * hidden + c];
      CHECK(result == expected);
    }
  });
}

TEST_CASE("each part of a table has the rows of the whole table's gradient, bit for bit") {
  for_each_space_type_and_gradient([]<class Space, class T, class G>(Types<Space, T, G>) {
    using A = backend::Accumulator<T>;
    const auto ids = integer_values(tokens, 0, vocabulary - 1, 7);
    const auto dy = normal_values<T>(tokens * hidden, 1);
    const auto before = normal_values<G>(vocabulary * hidden, 2);
    for (const bool accumulate : {false, true}) {
      KernelRun<Space> run;
      const auto id_view = run.template input<std::int32_t>(ids);
      const auto order = run.template output<std::int32_t>(tokens);
      const auto gradient = run.template input<T>(dy, hidden);
      const auto workspace = run.template workspace<A>(kernels::embedding_workspace_rows(tokens), hidden);
      const auto whole = run.template in_out<G>(before, hidden);
      std::vector<backend::Matrix<G, Space>> parts;
      for (int part = 0; part < 3; ++part)
        parts.push_back(run.template in_out<G>(rows_of(before, hidden, ends[part], ends[part + 1]), hidden));
      run.execute([&] {
        kernels::token_order<Space>(run.stream(), id_view, order);
        kernels::embedding_backward<Space, T, G>(run.stream(), id_view, order, gradient, whole, workspace,
                                                 accumulate);
        for (int part = 0; part < 3; ++part)
          kernels::embedding_backward<Space, T, G>(run.stream(), id_view, order, gradient, parts[part],
                                                   workspace, accumulate, ends[part]);
      });
      const auto expected = run.values(whole);
      for (int part = 0; part < 3; ++part)
        CHECK(run.values(parts[part]) == rows_of(expected, hidden, ends[part], ends[part + 1]));
    }
  });
}
