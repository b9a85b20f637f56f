/* tensor/layout: chunks as torch.chunk; every element is held, and by one device a shard; several mesh dimensions on one. */
#include "test.h"

#include "tensor/layout.h"

static const dt_mesh *mesh_of(int ndim, const int64_t *dims) {
    dt_device dev[64];
    for (uint32_t i = 0; i < 64; i++) dev[i] = dt_device_make(DT_CPU, i);
    const dt_mesh *m = NULL;
    CHECK_OK(dt_mesh_intern(ndim, dims, dev, NULL, &m));
    return m;
}

static const dt_meta *meta_of(const dt_type *type, const dt_mesh *mesh, const dt_placement *place) {
    const dt_meta *m = NULL;
    CHECK_OK(dt_meta_intern(type, mesh, place, &m));
    return m;
}

TEST(chunks_are_torch_chunk) {
    static const int64_t want[][6] = {{5, 4, 2, 2, 1, 0}, {6, 4, 2, 2, 2, 0}, {8, 4, 2, 2, 2, 2}, {1, 4, 1, 0, 0, 0}, {0, 4, 0, 0, 0, 0}, {7, 3, 3, 3, 1, 0}};
    for (size_t c = 0; c < sizeof want / sizeof *want; c++) {
        int64_t at = 0;
        for (int64_t i = 0; i < want[c][1]; i++) {
            int64_t lo, len;
            dt_layout_chunk(want[c][0], want[c][1], i, &lo, &len);
            CHECK_INT(len, want[c][2 + i]);
            CHECK_INT(lo, at);
            at += len;
        }
        CHECK_INT(at, want[c][0]);
    }
}

TEST(every_element_has_one_holder) {
    const dt_mesh *mesh = mesh_of(2, (int64_t[]){2, 3});
    dt_placement kinds[] = {DT_R, DT_S(0), DT_S(1)};
    for (int64_t rows = 0; rows < 9; rows++)
        for (int64_t cols = 1; cols < 6; cols += 2)
            for (int p = 0; p < 9; p++) {
                dt_type type = {DT_float32, 2, {rows, cols}};
                const dt_meta *m = meta_of(&type, mesh, (dt_placement[]){kinds[p / 3], kinds[p % 3]});
                REQUIRE(m);
                int held[8][6] = {{0}};
                for (int pos = 0; pos < mesh->n; pos++) {
                    if (!dt_layout_is_first(m, pos)) continue;
                    dt_box b;
                    dt_layout_box(m, pos, &b);
                    CHECK(dt_box_numel(&b, 2) * 4 <= dt_layout_bytes_max(m));
                    for (int64_t i = b.lo[0]; i < b.lo[0] + b.len[0]; i++)
                        for (int64_t j = b.lo[1]; j < b.lo[1] + b.len[1]; j++) held[i][j]++;
                }
                for (int64_t i = 0; i < rows; i++)
                    for (int64_t j = 0; j < cols; j++) REQUIRE(held[i][j] == 1);
            }
}

TEST(the_first_mesh_dimension_cuts_first) {
    const dt_mesh *mesh = mesh_of(2, (int64_t[]){2, 2});
    dt_type type = {DT_float32, 1, {6}};
    const dt_meta *m = meta_of(&type, mesh, (dt_placement[]){DT_S(0), DT_S(0)});
    static const int64_t lo[] = {0, 2, 3, 5}, len[] = {2, 1, 2, 1};
    for (int pos = 0; pos < 4; pos++) {
        dt_box b;
        dt_layout_box(m, pos, &b);
        CHECK_INT(b.lo[0], lo[pos]);
        CHECK_INT(b.len[0], len[pos]);
    }
}

TEST(boxes_intersect) {
    dt_box a = {{0, 2}, {4, 4}}, b = {{3, 0}, {4, 3}}, c = {{4, 2}, {1, 1}}, out;
    REQUIRE(dt_box_intersect(&a, &b, 2, &out));
    CHECK_INT(out.lo[0], 3);
    CHECK_INT(out.len[0], 1);
    CHECK_INT(out.lo[1], 2);
    CHECK_INT(out.len[1], 1);
    CHECK(!dt_box_intersect(&a, &c, 2, &out));
    CHECK(dt_box_intersect(&a, &b, 0, &out));
}

TEST(equal_metadata_is_one_pointer) {
    const dt_mesh *mesh = mesh_of(1, (int64_t[]){4});
    dt_type type = {DT_float32, 2, {5, 10}};
    CHECK_PTR(meta_of(&type, mesh, (dt_placement[]){DT_S(-1)}), meta_of(&type, mesh, (dt_placement[]){DT_S(1)}));
    CHECK(meta_of(&type, mesh, (dt_placement[]){DT_S(0)}) != meta_of(&type, mesh, (dt_placement[]){DT_S(1)}));
    const dt_meta *plain = meta_of(&type, NULL, NULL), *twin = NULL;
    CHECK_OK(dt_meta_with_dtype(plain, DT_float32, &twin));
    CHECK_PTR(plain, twin);
}

TEST(illegal_metadata_is_refused_with_a_reason) {
    const dt_mesh *mesh = mesh_of(1, (int64_t[]){4});
    const dt_meta *m = NULL;
    dt_type type = {DT_float32, 2, {5, 10}}, negative = {DT_float32, 1, {-1}}, huge = {DT_float32, 2, {INT64_MAX / 2, 3}};
    CHECK_STATUS(dt_meta_intern(&type, mesh, (dt_placement[]){DT_S(2)}, &m), DT_E_PLACEMENT);
    CHECK_HAS(dt_error_message(), "-2 to 1");
    CHECK_STATUS(dt_meta_intern(&negative, mesh, (dt_placement[]){DT_R}, &m), DT_E_SHAPE);
    CHECK_STATUS(dt_meta_intern(&huge, mesh, (dt_placement[]){DT_R}, &m), DT_E_SHAPE);
    dt_device twice[2] = {0, 0};
    const dt_mesh *none = NULL;
    CHECK_STATUS(dt_mesh_intern(1, (int64_t[]){2}, twice, NULL, &none), DT_E_VALUE);
    CHECK_STATUS(dt_mesh_intern(1, (int64_t[]){0}, twice, NULL, &none), DT_E_VALUE);
    CHECK_PTR(m, NULL);
    CHECK_PTR(none, NULL);
    int64_t dim = 2;
    CHECK_STATUS(dt_dim_wrap(&dim, 2), DT_E_INDEX);
    dim = -2;
    CHECK_OK(dt_dim_wrap(&dim, 2));
    CHECK_INT(dim, 0);
}
