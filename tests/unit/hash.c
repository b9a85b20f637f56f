/* base/hash: what goes in is found, growing included; what is removed is not. */
#include "test.h"

#include "base/hash.h"

enum { N = 5000 };
typedef struct {
    dt_hlink link;
    int key;
} item;

static item *find(const dt_htab *t, int key) {
    uint64_t h = dt_hash_bytes(&key, sizeof key, 1);
    for (dt_hlink *l = dt_htab_first(t, h); l; l = l->next)
        if (l->hash == h && ((item *)l)->key == key) return (item *)l;
    return NULL;
}

TEST(table_finds_what_it_holds) {
    dt_htab t;
    REQUIRE_OK(dt_htab_init(&t, 4));
    static item items[N];
    for (int i = 0; i < N; i++) {
        items[i].key = i * 977;
        REQUIRE_OK(dt_htab_add(&t, &items[i].link, dt_hash_bytes(&items[i].key, sizeof items[i].key, 1)));
    }
    CHECK_INT(t.count, N);
    for (int i = 0; i < N; i += 2) dt_htab_remove(&t, &items[i].link);
    CHECK_INT(t.count, N / 2);
    for (int i = 0; i < N; i++) CHECK_PTR(find(&t, items[i].key), i % 2 ? &items[i] : NULL);
    dt_htab_fini(&t);
}

TEST(order_and_length_matter) {
    uint64_t ab[] = {1, 2}, ba[] = {2, 1};
    CHECK(dt_hash_words(ab, 2, 0) != dt_hash_words(ba, 2, 0));
    CHECK(dt_hash_words(ab, 2, 0) != dt_hash_words(ab, 1, 0));
    CHECK(dt_hash_bytes("\0\0", 1, 0) != dt_hash_bytes("\0\0", 2, 0));
}
