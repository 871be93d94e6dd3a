// One target's table of functions. Compiled with -DLASFORMER_TARGET=name and the target's flags: see ops/cpu/build.py.
#include "arithmetic.h"

#include "attention.h"
#include "dropout.h"
#include "gather.h"
#include "products.h"
#include "rows.h"
#include "selection.h"

#define LASFORMER_TEXT_OF(x) #x
#define LASFORMER_TEXT(x) LASFORMER_TEXT_OF(x)

namespace lasformer {
namespace LASFORMER_TARGET {

extern const Arithmetic table;
const Arithmetic table = {
    LASFORMER_TEXT(LASFORMER_TARGET),
    sizeof(Number),
    kShift,
    quantise,
    product,
    layer_norm,
    activate,
    logarithm,
    score,
    candidates,
    next_above,
    quantise_heads,
    attend,
    gather_forward,
    gather_backward,
    dropout,
    row_softmax,
    softmax_gradient,
    mask_gradient,
    kept_gradient,
    log_softmax,
};

}  // namespace LASFORMER_TARGET
}  // namespace lasformer
