/* Block functions of activations and of their gradients. In a gradient a is the gradient of the result; b is what the op saved: the input,
 * or the result where the name says so below. */
#include "backend/cpu/isa/pw.h"

PW_FLT1(relu, (a > 0) | (a != a) ? a : (T)0)
PW_INT1(relu, a > 0 ? a : 0)
PW_NUMP1(threshold, a <= pa ? pb : a)
PW_NUMP2(threshold_backward, b <= pa ? (T)0 : a)

PW_FLT1(sigmoid, M_SIGMOID(a))
PW_FLT2(sigmoid_backward, a *(((T)1 - b) * b)) /* b: the result */
PW_FLT2(tanh_backward, a *((T)1 - b * b))      /* b: the result */

/* gelu: x Phi(x), Phi the normal distribution function; and its tanh approximation */
#define INV_SQRT_2PI ((T)0.39894228040143267794)
PW_FLT1(gelu, a *M_PHI(a))
PW_FLT2(gelu_backward, a *(M_PHI(b) + b * M_EXP((T)-0.5 * b * b) * INV_SQRT_2PI))
/* (1 + tanh u) / 2 = 1 / (1 + e^-2u): half the work, and nothing cancels where tanh is near -1. */
#define GELU_2K ((T)1.59576912160573071176) /* 2 sqrt(2 / pi) */
#define GELU_C ((T)0.044715)
#define GELU_S(x) M_SIGMOID(GELU_2K *((x) + GELU_C * (x) * (x) * (x)))
PW_FLT1(gelu_tanh, a *GELU_S(a))
#define PW_GELU_TANH(name, suffix, T_, W_, O_, expr) PW_BODY(name, suffix, T_, W_, O_, PW_PTR2, PW_GET2; T s = GELU_S(b), expr)
PW_OVER_FLT_R(PW_GELU_TANH, gelu_tanh_backward, a *(s + b * (s * ((T)1 - s)) * GELU_2K * ((T)1 + (T)3 * GELU_C * b * b)))

PW_FLT1(silu, a *M_SIGMOID(a))
#define PW_SIGM(name, suffix, T_, W_, O_, expr) PW_BODY(name, suffix, T_, W_, O_, PW_PTR2, PW_GET2; T s = M_SIGMOID(b), expr)
PW_OVER_FLT_R(PW_SIGM, silu_backward, a *(s *((T)1 + b * ((T)1 - s))))

/* log(1 + e^x) without overflow */
VM float softplus_f32(float x) { return (x > 0.0f ? x : 0.0f) + vm_log1p(vm_exp(-fabsf(x))); }
VM double softplus_f64(double x) { return (x > 0.0 ? x : 0.0) + log1p(exp(-fabs(x))); }
#define M_SOFTPLUS(x) M_BY_TYPE(x, softplus_f32, softplus_f64)(x)
PW_FLT1(mish, a *M_TANH(M_SOFTPLUS(a)))
#define PW_MISH(name, suffix, T_, W_, O_, expr) PW_BODY(name, suffix, T_, W_, O_, PW_PTR2, PW_GET2; T s = M_SIGMOID(b); T t = M_TANH(M_SOFTPLUS(b)), expr)
PW_OVER_FLT_R(PW_MISH, mish_backward, a *(t + b * s * ((T)1 - t * t)))
PW_FLTP1(softplus, a *pa > pb ? a : M_SOFTPLUS(a * pa) / pa) /* pa: beta, pb: threshold */
PW_FLTP2(softplus_backward, b *pa > pb ? a : a * M_SIGMOID(b * pa))
PW_FLT1(logsigmoid, -M_SOFTPLUS(-a))
PW_FLT2(logsigmoid_backward, a *M_SIGMOID(-b))

/* elu: x > 0 ? scale x : alpha scale (e^(input_scale x) - 1); pa: alpha, pb: scale, pc: input_scale */
PW_FLTP1(elu, a > 0 ? a * pb : M_EXPM1(a * pc) * (pa * pb))
PW_FLTP2(elu_backward, b > 0 ? a * pb : a * pc * pa * pb * M_EXP(b * pc))
PW_FLTP1(leaky_relu, a > 0 ? a : a * pa)
PW_FLTP2(leaky_relu_backward, b > 0 ? a : a * pa)
PW_NUMP1(hardtanh, a<pa ? pa : a> pb ? pb : a)
PW_FLTP2(hardtanh_backward, (b > pa) & (b < pb) ? a : (T)0)
#define CLIP(v, lo, hi) ((v) < (lo) ? (lo) : (v) > (hi) ? (hi) : (v))
PW_FLT1(hardswish, a *CLIP(a + (T)3, (T)0, (T)6) / (T)6)
PW_FLT2(hardswish_backward, b <= (T)-3 ? (T)0 : b >= (T)3 ? a : a * (b / (T)3 + (T)0.5))
PW_FLT1(hardsigmoid, CLIP(a + (T)3, (T)0, (T)6) / (T)6)
PW_FLT2(hardsigmoid_backward, (b > (T)-3) & (b < (T)3) ? a / (T)6 : (T)0)
PW_FLTP1(softshrink, a > pa ? a - pa : a < -pa ? a + pa : a * (T)0)
PW_FLTP1(hardshrink, (a >= -pa) & (a <= pa) ? (T)0 : a)
PW_FLTP2(shrink_backward, (b >= -pa) & (b <= pa) ? (T)0 : a)
