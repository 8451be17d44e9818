/* Bytes that host and kernel exchange: pages, queries, results. All numbers are little-endian, all
 * offsets and lengths multiples of 8. `docs/pim.md` section "Bytes" has the drawings;
 * `src/layout.rs` writes and reads the same bytes, and a test compares both sides. */
#ifndef COPPICE_PIM_RECORD_H
#define COPPICE_PIM_RECORD_H

#include <stdint.h>

enum {
    KEY_BYTES_MAX = 128,
    ENTRIES_MAX = 256,
    LIST_LEVELS_MAX = 9,
    LEVELS_MAX = 4,
    PREFIX_BYTES_MAX = 32,
    GROUP = 8,
    GROUP_BYTES = 64,
    HEAD_BYTES_MAX = 304,
    RESULT_BYTES_MAX = 2048,
    QUERY_BYTES_MAX = 8 + KEY_BYTES_MAX,
    HASH_BYTES = 40,
    LEAF_TAIL_BYTES = 56,
    INNER_TAIL_BYTES = 48,
    TASKLETS_MAX = 16,
    /* A pointer to a page: length of its head in units of 8 bytes, then its address. */
    ADDRESS_BITS = 26,
};

enum status { STATUS_NONE = 0, STATUS_DONE = 1, STATUS_OVERFLOW = 2, STATUS_BAD_PAGE = 3 };

/* What the host sets before a launch. Offsets count from the start of the MRAM heap. */
struct pim_args {
    uint32_t queries_at;
    uint32_t query_bytes;
    uint32_t results_at;
    uint32_t result_bytes;
    uint32_t count;
    uint32_t reserved;
};

/* Start of a page: this, the common prefix of its keys, and one word for each group. */
struct page_head {
    uint32_t serial;
    uint16_t count;
    uint8_t level;
    uint8_t prefix_bytes;
    uint32_t hashes_at;
    uint32_t page_bytes;
};

/* The first 8 bytes of a key behind the prefix, as a big-endian number. */
struct word {
    uint32_t high;
    uint32_t low;
};

/* Place of an entry's blob in its page, in units of 8 bytes, and the child of an inner entry. */
struct reference {
    uint16_t blob8;
    uint16_t key_bytes;
    uint32_t child;
};

struct query {
    uint32_t page;
    uint16_t key_bytes;
    uint16_t reserved;
    uint8_t key[KEY_BYTES_MAX];
};

/* Start of a result. One part for each level follows, that of the leaf first. */
struct result_head {
    uint32_t status;
    uint16_t levels;
    uint16_t open;
    uint32_t used_bytes;
    uint32_t page;
};

/* Start of a part. The blobs of the shown entries and the hashes of the list proof follow. */
struct part_head {
    uint32_t page;
    uint32_t serial;
    uint16_t count;
    uint16_t index;
    uint8_t shown;
    uint8_t hashes;
    uint8_t found;
    uint8_t level;
};

#endif
