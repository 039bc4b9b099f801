// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

/// Turns each pair (x, y) by a right angle and doubles it, `replays` times, by one recorded graph.
std::vector<float> turned_and_doubled(std::vector<float> pairs, int replays);
