# SPDX-License-Identifier: Apache-2.0
find_package(Encore CONFIG REQUIRED COMPONENTS engine)
