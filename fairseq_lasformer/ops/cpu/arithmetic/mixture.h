// A table of functions of several targets: those of the first, except where another's are measured to be faster.
//
// A target with wider vectors, or with tiles, is not faster in everything on every processor. All targets except `plain`
// give the same bits, so what is measured changes no result.
#pragma once

#include <string>
#include <vector>

#include "arithmetic.h"

namespace lasformer {

struct Mixture {
  explicit Mixture(const Arithmetic& own) : table(own) {}

  // Takes the rival's functions of selection, attention and softmax that are faster; returns this.
  Mixture& borrow(const Arithmetic& rival);

  // Takes the rival's product of 8-bit numbers if it is faster and takes them in the same form.
  Mixture& borrow_product(const Arithmetic& rival);

  Arithmetic table;                   // named after the first target
  std::vector<std::string> borrowed;  // the functions of others in it, as "avx2.score"
};

}  // namespace lasformer
