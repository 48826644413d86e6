// An input or a machine that Octavo refuses; Python sees octavo.errors.BackendError.
#pragma once

#include <stdexcept>

namespace octavo {

class Refusal : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace octavo
