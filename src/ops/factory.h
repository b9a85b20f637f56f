/* Attribute structs that factories share with their kernels. */
#ifndef DT_OPS_FACTORY_H
#define DT_OPS_FACTORY_H

#include <stdint.h>

typedef struct dt_linspace_attr {
    int64_t steps;
    double base; /* NaN: linspace */
    int32_t dtype;
} dt_linspace_attr;

#endif
