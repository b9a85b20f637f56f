/* tensor/dtype: promotion as PyTorch's, half-precision conversions exactly rounded. */
#include "test.h"

#include "tensor/dtype.h"

TEST(promotion) {
    static const uint8_t want[][3] = {{DT_bool, DT_uint8, DT_uint8},        {DT_uint8, DT_int8, DT_int16},         {DT_uint8, DT_int32, DT_int32},
                                      {DT_int64, DT_float16, DT_float16},   {DT_float16, DT_bfloat16, DT_float32}, {DT_float32, DT_bfloat16, DT_float32},
                                      {DT_float64, DT_float16, DT_float64}, {DT_int8, DT_int16, DT_int16},         {DT_bool, DT_bool, DT_bool}};
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        CHECK_INT(dt_dtype_promote(want[i][0], want[i][1]), want[i][2]);
        CHECK_INT(dt_dtype_promote(want[i][1], want[i][0]), want[i][2]);
    }
}

TEST(every_half_survives_a_round_trip) {
    for (uint32_t h = 0; h < 65536; h++) {
        float f = dt_f16_to_f32((uint16_t)h), b = dt_bf16_to_f32((uint16_t)h);
        if (isnan(f))
            CHECK(isnan(dt_f16_to_f32(dt_f16_from_f32(f))));
        else
            REQUIRE(dt_f16_from_f32(f) == h);
        if (isnan(b))
            CHECK(isnan(dt_bf16_to_f32(dt_bf16_from_f32(b))));
        else
            REQUIRE(dt_bf16_from_f32(b) == h);
    }
}

/* Between two neighbours, the nearer one; half way, the even one. */
TEST(halves_round_to_nearest_even) {
    for (uint32_t h = 0; h < 0x7bff; h++) {
        double lo = dt_f16_to_f32((uint16_t)h), hi = dt_f16_to_f32((uint16_t)(h + 1)), mid = (lo + hi) / 2;
        REQUIRE(dt_f16_from_f32((float)mid) == (h & 1 ? h + 1 : h));
        REQUIRE(dt_f16_from_f32(nextafterf((float)mid, INFINITY)) == h + 1);
        REQUIRE(dt_f16_from_f32(nextafterf((float)mid, 0)) == h);
    }
    CHECK_INT(dt_f16_from_f32(65519.0f), 0x7bff);
    CHECK_INT(dt_f16_from_f32(65520.0f), 0x7c00);
    CHECK_INT(dt_f16_from_f32(-INFINITY), 0xfc00);
    CHECK_INT(dt_bf16_from_f32(1.0f + 0x1p-8f), 0x3f80);
    CHECK_INT(dt_bf16_from_f32(1.0f + 0x3p-8f), 0x3f82);
}

TEST(elements_convert) {
    uint8_t bytes[8];
    dt_element_set_f64(DT_bool, bytes, 0.5);
    CHECK_INT(bytes[0], 1);
    dt_element_set_i64(DT_int8, bytes, 300);
    CHECK_INT(dt_element_get_i64(DT_int8, bytes), 44);
    for (int t = DT_float16; t <= DT_float64; t++) {
        dt_element_set_f64((dt_dtype)t, bytes, -1.5);
        CHECK_NEAR(dt_element_get_f64((dt_dtype)t, bytes), -1.5, 0);
        dt_element_set_i64((dt_dtype)t, bytes, 3);
        CHECK_INT(dt_element_get_i64((dt_dtype)t, bytes), 3);
    }
}
