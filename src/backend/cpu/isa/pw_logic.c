/* Block functions of comparisons, predicates, logic and bit operations. Bools are 0 or 1. */
#include "backend/cpu/isa/pw.h"

PW_ANY_TEST2(eq, a == b)
PW_ANY_TEST2(ne, a != b)
PW_ANY_TEST2(lt, a < b)
PW_ANY_TEST2(le, a <= b)
PW_ANY_TEST2(gt, a > b)
PW_ANY_TEST2(ge, a >= b)
PW_ANY_TEST2(logical_and, (a != 0) & (b != 0))
PW_ANY_TEST2(logical_or, (a != 0) | (b != 0))
PW_ANY_TEST2(logical_xor, (a != 0) ^ (b != 0))
PW_ANY_TEST1(logical_not, a == 0)

PW_TEST1(isnan, a != a)
PW_TEST1(isinf, M_ABS(a) == (T)INFINITY)
PW_TEST1(isfinite, M_ABS(a) < (T)INFINITY)
PW_TEST1(isposinf, a == (T)INFINITY)
PW_TEST1(isneginf, a == (T)-INFINITY)
/* integers and bools are finite */
#define EXACT(name, answer) PW_OVER_INT_B(PW_BLOCK1, name, (a & 0) | answer) PW_BOOL1(name, (a & 0) | answer)
EXACT(isnan, 0)
EXACT(isinf, 0)
EXACT(isfinite, 1)
EXACT(isposinf, 0)
EXACT(isneginf, 0)
PW_OVER_INT_B(PW_BLOCK1, signbit, a < 0)
PW_BOOL1(signbit, a & 0)
PW_BLOCK1(signbit, f32, float, float, uint8_t, vm_bits(a) < 0)
PW_BLOCK1(signbit, f64, double, double, uint8_t, vd_bits(a) < 0)

/* |a - b| <= atol + rtol |b|; pa = rtol, pb = atol, pc = equal_nan */
PW_OVER_FLT_B(PW_BLOCKP2, isclose, (a == b) | ((M_ABS(b) < (T)INFINITY) & (M_ABS(a - b) <= pb + pa * M_ABS(b))) | ((pc != 0) & (a != a) & (b != b)))
#define PW_CLOSE(name, suffix, T_, W_, O_, expr) \
    PW_BODY(name, suffix, T_, W_, O_, PW_PTR2; const double pa = ((const dt_pw_floats *)p)->a; const double pb = ((const dt_pw_floats *)p)->b, PW_GET2, expr)
PW_OVER_INT_B(PW_CLOSE, isclose, (a == b) | (fabs((double)a - (double)b) <= pb + pa * fabs((double)b)))
PW_OVER_BOOL_R(PW_CLOSE, isclose, (a == b) | (fabs((double)a - (double)b) <= pb + pa * fabs((double)b)))

PW_INT2(bitwise_and, a &b)
PW_BOOL2(bitwise_and, a &b)
PW_INT2(bitwise_or, a | b)
PW_BOOL2(bitwise_or, a | b)
PW_INT2(bitwise_xor, a ^ b)
PW_BOOL2(bitwise_xor, a ^ b)
PW_INT1(bitwise_not, ~a)
PW_BOOL1(bitwise_not, a ^ 1)
/* a shift by the width or more, or by less than 0, gives what shifting one by one would: 0, or the sign */
#define WIDTH ((int)(8 * sizeof(T)))
#define OUTSIDE ((int64_t)b < 0 || (int64_t)b >= WIDTH)
PW_INT2(bitwise_left_shift, OUTSIDE ? (W)0 : (W)a << b)
PW_INT2(bitwise_right_shift, OUTSIDE ? (T)(a < 0 ? -1 : 0) : (T)(a >> b))
