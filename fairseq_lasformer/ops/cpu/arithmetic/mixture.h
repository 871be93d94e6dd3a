// A table of functions from two targets: those of the first, except where the second's are measured to be faster.
//
// A target with wider vectors is not faster in everything on every processor. All targets except `plain` give the same
// bits, so what is measured changes no result.
#pragma once

#include <string>
#include <vector>

#include "arithmetic.h"

namespace lasformer {

struct Mixture {
  Mixture(const Arithmetic& own, const Arithmetic& rival);

  Arithmetic table;                   // named after the first target
  std::vector<std::string> borrowed;  // names of the second target's functions in it
};

}  // namespace lasformer
