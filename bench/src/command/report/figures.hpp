// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "report.hpp"

namespace encore::command {

// Each gives a section of the page, or nothing where the report lacks what it shows.

/// Whether graphs are worth keeping, in words, with the interval and the pairs of blocks.
std::string verdict_section(const Report& report);
/// Training loss with its moving mean, and the loss on evaluation data.
std::string loss_section(const Report& report);
/// The time of each step, by how it ran.
std::string step_time_section(const Report& report);
/// Which buffer lies where in the arena, from which segment to which; and what all memory is for.
std::string memory_section(const Report& report);
/// Each kind of segment: captured or eager and why, kernels, and where it was measured its time against its floor.
std::string segments_section(const Report& report);

/// The verdict in a few words: `Keep the graphs`.
std::string verdict_headline(const ReportVerdict& verdict);
/// And in sentences, with the interval.
std::string verdict_words(const ReportVerdict& verdict);

/// At most `most` of the steps, evenly; all that did not replay stay.
std::vector<ReportStep> thinned(const std::vector<ReportStep>& steps, std::size_t most);
/// Of the steps of one mode; 0 where there is none.
double median_milliseconds(const std::vector<ReportStep>& steps, graph::StepMode mode);

}  // namespace encore::command
