/* Facts about elementwise codes. See pointwise.h. */
#include "ops/pointwise.h"

static const struct {
    uint8_t inputs, key;
} facts[DT_PW_COUNT] = {
    [DT_PW_CAST] = {1, 0},
#define DT_PW(name, inputs, key, types) [DT_PW_##name] = {inputs, key},
#include "ops/pointwise.def"
#undef DT_PW
};

int dt_pw_inputs(int code) { return code > 0 && code < DT_PW_COUNT ? facts[code].inputs : 0; }
int dt_pw_key(int code) { return code > 0 && code < DT_PW_COUNT ? facts[code].key : 0; }
