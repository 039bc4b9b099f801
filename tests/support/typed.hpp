// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/space.hpp>

#include <doctest/doctest.h>

#include <string>

namespace encore::tests {

/// Hands types to a generic lambda.
template <class...>
struct Types {};

/// "cuda bfloat16": what a failing check of a typed test names.
template <class Space, class T>
std::string typed_name() {
  return std::string(backend::name_of(backend::backend_of<Space>())) + " " +
         std::string(backend::name_of(backend::data_type_of<T>));
}

/// Calls `body(Types<Space, T>())` for every space and type that this build contains.
template <class Body>
void for_each_space_and_type(const Body& body) {
#define ENCORE_CALL(SPACE, T)                        \
  {                                                  \
    const std::string name = typed_name<SPACE, T>(); \
    INFO(name);                                      \
    body(Types<SPACE, T>{});                         \
  }
  ENCORE_FOR_EACH_SPACE_AND_TYPE(ENCORE_CALL)
#undef ENCORE_CALL
}

/// The same with the type of parameter gradients, `body(Types<Space, T, G>())`.
template <class Body>
void for_each_space_type_and_gradient(const Body& body) {
#define ENCORE_CALL(SPACE, T, G)                                                                \
  {                                                                                             \
    const std::string name =                                                                    \
        typed_name<SPACE, T>() + " " + std::string(backend::name_of(backend::data_type_of<G>)); \
    INFO(name);                                                                                 \
    body(Types<SPACE, T, G>{});                                                                 \
  }
  ENCORE_FOR_EACH_SPACE_TYPE_AND_GRADIENT(ENCORE_CALL)
#undef ENCORE_CALL
}

template <class Body>
void for_each_space(const Body& body) {
#define ENCORE_CALL(SPACE)                                                  \
  {                                                                         \
    const std::string name(backend::name_of(backend::backend_of<SPACE>())); \
    INFO(name);                                                             \
    body(Types<SPACE>{});                                                   \
  }
  ENCORE_FOR_EACH_SPACE(ENCORE_CALL)
#undef ENCORE_CALL
}

}  // namespace encore::tests
