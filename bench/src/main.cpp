// SPDX-License-Identifier: Apache-2.0
#include "command/run.hpp"

int main(int argc, char** argv) { return encore::command::run({argv + 1, argv + argc}); }
