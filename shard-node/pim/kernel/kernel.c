/* Answers lookups in the pages of one DPU: walks from the root of a subtree to a leaf, and returns
 * the entries and hashes that a proof of the key needs.
 *
 * Tasklet t takes the queries t, t + T, t + 2T and so on, so no two tasklets share anything that
 * one of them writes. There is no recursion, no multiplication of 64 bits, and nothing is hashed.
 * What a page says of itself is bounded before it decides a loop or a place in WRAM. A wrong
 * address in MRAM is a fault of the DPU, and the host judges every answer. */
#include "platform.h"

/* One tasklet's buffers, all in WRAM and aligned to 8 bytes. */
struct work {
    struct query query;
    uint8_t head[HEAD_BYTES_MAX];
    struct word group[GROUP];
    uint8_t blob[8 + KEY_BYTES_MAX];
    uint8_t result[];
};

/* A page on the way down. */
struct step {
    uint32_t page;
    uint32_t serial;
    uint32_t hashes_at;
    uint16_t count;
    uint16_t index;
    uint16_t references_at;
    uint8_t shown;
    uint8_t found;
    uint8_t level;
    /* Whether the key is above all keys of the page. */
    uint8_t past;
};

_Static_assert(sizeof(struct pim_args) == 24, "args are sent as 24 bytes");
_Static_assert(sizeof(struct page_head) == 16, "a page begins with 16 bytes");
_Static_assert(sizeof(struct query) == QUERY_BYTES_MAX, "a query has no gaps");
_Static_assert(sizeof(struct result_head) == 16 && sizeof(struct part_head) == 16, "heads have 16 bytes");
_Static_assert(sizeof(struct work) % 8 == 0, "the result is aligned");

static uint32_t up8(uint32_t bytes) { return (bytes + 7) & ~7u; }

static uint32_t address_of(uint32_t page) { return page & ((1u << ADDRESS_BITS) - 8); }

static struct word word_of(const uint8_t *key, uint32_t bytes) {
    struct word word = {0, 0};
    uint32_t take = bytes < 8 ? bytes : 8;
    for (uint32_t at = 0; at < take; at++) {
        if (at < 4) word.high |= (uint32_t)key[at] << (24 - 8 * at);
        else word.low |= (uint32_t)key[at] << (56 - 8 * at);
    }
    COST(10 + 5 * take);
    return word;
}

static int below(struct word a, struct word b) { return a.high < b.high || (a.high == b.high && a.low < b.low); }

static int same(struct word a, struct word b) { return a.high == b.high && a.low == b.low; }

/* Less than, equal to or more than 0, as `a` is below, equal to or above `b`. */
static int compare(const uint8_t *a, uint32_t a_bytes, const uint8_t *b, uint32_t b_bytes) {
    uint32_t both = a_bytes < b_bytes ? a_bytes : b_bytes;
    for (uint32_t at = 0; at < both; at++) {
        COST(5);
        if (a[at] != b[at]) return a[at] < b[at] ? -1 : 1;
    }
    return a_bytes < b_bytes ? -1 : a_bytes > b_bytes;
}

static struct reference reference_of(struct work *work, const struct step *step, uint32_t index) {
    uint32_t at = address_of(step->page) + step->references_at + 8 * index;
    /* The blob's buffer is free: only `compare_entry` uses it, after this. */
    read_mram(at, work->blob, 8);
    COST(8);
    return *(const struct reference *)(const void *)work->blob;
}

/* Compares the key of entry `index` with the one that is looked for. */
static int compare_entry(struct work *work, const struct step *step, uint32_t index) {
    struct reference reference = reference_of(work, step, index);
    uint32_t bytes = reference.key_bytes;
    if (bytes > KEY_BYTES_MAX) return 1;
    read_mram(address_of(step->page) + 8u * reference.blob8, work->blob, 8 + up8(bytes));
    return compare(work->blob + 8, bytes, work->query.key, work->query.key_bytes);
}

/* The number of entries below the key. `step->found` says whether the next one equals it. */
static uint32_t position_of(struct work *work, struct step *step, uint32_t prefix) {
    const struct query *query = &work->query;
    uint32_t take = query->key_bytes < prefix ? query->key_bytes : prefix;
    int order = compare(query->key, take, work->head + sizeof(struct page_head), prefix);
    if (order != 0) return order < 0 ? 0 : step->count;
    struct word wanted = word_of(query->key + prefix, query->key_bytes - prefix);
    const struct word *fences = (const void *)(work->head + sizeof(struct page_head) + up8(prefix));
    uint32_t groups = (step->count + GROUP - 1u) / GROUP;
    /* The last group that begins below the key, or the first one. */
    uint32_t low = 0, high = groups;
    while (high - low > 1) {
        uint32_t middle = (low + high) / 2;
        if (below(fences[middle], wanted)) low = middle;
        else high = middle;
        COST(12);
    }
    uint32_t words_at = address_of(step->page) + sizeof(struct page_head) + up8(prefix) + 8 * groups;
    uint32_t position = low * GROUP;
    for (uint32_t loaded = groups; position < step->count; position++) {
        uint32_t group = position / GROUP;
        if (group != loaded) read_mram(words_at + group * GROUP_BYTES, work->group, GROUP_BYTES);
        loaded = group;
        struct word word = work->group[position % GROUP];
        COST(14);
        if (below(word, wanted)) continue;
        if (!same(word, wanted)) break;
        int found = compare_entry(work, step, position);
        if (found > 0) break;
        if (found == 0) {
            step->found = 1;
            break;
        }
    }
    return position;
}

/* Finds the way in one page. Returns 0 if the page is not one. */
static int enter(struct work *work, struct step *step) {
    uint32_t head_bytes = 8 * (step->page >> ADDRESS_BITS);
    if (head_bytes < sizeof(struct page_head) + 8 || head_bytes > HEAD_BYTES_MAX) return 0;
    read_mram(address_of(step->page), work->head, head_bytes);
    const struct page_head *head = (const void *)work->head;
    uint32_t prefix = head->prefix_bytes, groups = (head->count + GROUP - 1u) / GROUP;
    uint32_t fences_end = sizeof(struct page_head) + up8(prefix) + 8 * groups;
    COST(30);
    if (head->count == 0 || head->count > ENTRIES_MAX || fences_end != head_bytes) return 0;
    if (prefix > PREFIX_BYTES_MAX || head->level >= LEVELS_MAX) return 0;
    step->serial = head->serial;
    step->count = head->count;
    step->level = head->level;
    step->hashes_at = head->hashes_at;
    step->found = 0;
    step->shown = 1;
    step->references_at = (uint16_t)(fences_end + groups * GROUP_BYTES);
    uint32_t position = position_of(work, step, prefix);
    step->past = position == step->count;
    step->index = step->found || position == 0 ? position : position - 1;
    if (step->level == 0 && !step->found && position > 0 && position < step->count) step->shown = 2;
    return 1;
}

/* Result bytes of one query, as they grow. */
struct output {
    uint8_t *bytes;
    uint32_t used;
    uint32_t max;
};

/* Room for that many bytes, or null. */
static uint8_t *room(struct output *output, uint32_t bytes) {
    COST(6);
    if (output->max - output->used < bytes) return 0;
    uint8_t *at = output->bytes + output->used;
    output->used += bytes;
    return at;
}

static int put_entry(struct work *work, const struct step *step, uint32_t index, struct output *output) {
    struct reference reference = reference_of(work, step, index);
    uint32_t tail = step->level == 0 ? LEAF_TAIL_BYTES : INNER_TAIL_BYTES;
    if (reference.key_bytes > KEY_BYTES_MAX) return 0;
    uint32_t bytes = 8 + up8(reference.key_bytes) + tail;
    uint8_t *to = room(output, bytes);
    if (to == 0) return 0;
    read_mram(address_of(step->page) + 8u * reference.blob8, to, bytes);
    return 1;
}

static int put_hash(const struct step *step, uint32_t number, struct output *output) {
    uint8_t *to = room(output, HASH_BYTES);
    if (to == 0) return 0;
    read_mram(address_of(step->page) + (step->hashes_at & ~7u) + number * HASH_BYTES, to, HASH_BYTES);
    return 1;
}

/* Puts the list proof of the shown entries: hashes to their left from the root down, then hashes to
 * their right from the leaves up. Returns their number, or -1 if there is no room. */
static int put_list_proof(const struct step *step, struct output *output) {
    uint32_t first = step->index, last = step->index + step->shown - 1u;
    uint16_t starts[LIST_LEVELS_MAX], widths[LIST_LEVELS_MAX];
    uint32_t levels = 0, start = 0;
    for (uint32_t width = step->count; width > 1; width = (width + 1) / 2) {
        starts[levels] = (uint16_t)start;
        widths[levels] = (uint16_t)width;
        levels++;
        start += width;
        COST(10);
    }
    int hashes = 0;
    for (uint32_t level = levels; level-- > 0;) {
        uint32_t at = first >> level;
        COST(8);
        if ((at & 1) == 0) continue;
        if (!put_hash(step, starts[level] + at - 1, output)) return -1;
        hashes++;
    }
    for (uint32_t level = 0; level < levels; level++) {
        uint32_t right = (last >> level) + 1;
        COST(10);
        if ((right & 1) == 0 || right >= widths[level]) continue;
        if (!put_hash(step, starts[level] + right, output)) return -1;
        hashes++;
    }
    return hashes;
}

static int put_part(struct work *work, const struct step *step, struct output *output) {
    struct part_head *head = (void *)room(output, sizeof(struct part_head));
    if (head == 0) return 0;
    for (uint32_t number = 0; number < step->shown; number++) {
        if (!put_entry(work, step, step->index + number, output)) return 0;
    }
    int hashes = put_list_proof(step, output);
    if (hashes < 0) return 0;
    head->page = step->page;
    head->serial = step->serial;
    head->count = step->count;
    head->index = step->index;
    head->shown = step->shown;
    head->hashes = (uint8_t)hashes;
    head->found = step->found;
    head->level = step->level;
    COST(20);
    return 1;
}

/* Walks down. Returns the number of pages on the way, or 0 if one of them is no page. */
static uint32_t descend(struct work *work, struct step *steps) {
    uint32_t page = work->query.page;
    for (uint32_t depth = 0; depth < LEVELS_MAX; depth++) {
        struct step *step = &steps[depth];
        step->page = page;
        if (!enter(work, step)) return 0;
        if (depth > 0 && step->level + 1u != steps[depth - 1].level) return 0;
        if (step->level == 0) return depth + 1;
        page = reference_of(work, step, step->index).child;
    }
    return 0;
}

/* Returns the length of the result. */
static uint32_t answer(struct work *work, uint32_t key_bytes_max, uint32_t result_bytes) {
    struct step steps[LEVELS_MAX];
    struct result_head *head = (void *)work->result;
    struct output output = {work->result, sizeof(struct result_head), result_bytes};
    head->page = work->query.page;
    head->open = 0;
    head->levels = 0;
    head->status = STATUS_BAD_PAGE;
    uint32_t levels = work->query.key_bytes > key_bytes_max ? 0 : descend(work, steps);
    if (levels > 0) {
        const struct step *leaf = &steps[levels - 1];
        /* If the key is above all keys of the leaf, the next entry above must be shown. */
        int open = leaf->past;
        head->status = STATUS_DONE;
        for (uint32_t depth = levels; depth-- > 0;) {
            struct step *step = &steps[depth];
            if (step->level > 0 && open && step->index + 1u < step->count) {
                step->shown = 2;
                open = 0;
            }
            if (put_part(work, step, &output)) continue;
            head->status = STATUS_OVERFLOW;
            break;
        }
        head->open = (uint16_t)open;
        head->levels = (uint16_t)levels;
    }
    head->used_bytes = output.used;
    COST(40);
    return output.used;
}

int KERNEL_MAIN(void) {
    start_tasklet();
    const struct pim_args *args = ARGS;
    uint32_t result_bytes = args->result_bytes, query_bytes = args->query_bytes;
    if (result_bytes > RESULT_BYTES_MAX || result_bytes < sizeof(struct result_head)) return 1;
    if (query_bytes > QUERY_BYTES_MAX || query_bytes < 8) return 1;
    struct work *work = mem_alloc(sizeof(struct work) + result_bytes);
    /* Static stripes: no tasklet ever waits for another one. */
    uint32_t step = TASKLETS;
    uint32_t query_at = args->queries_at + me() * query_bytes, query_step = step * query_bytes;
    uint32_t result_at = args->results_at + me() * result_bytes, result_step = step * result_bytes;
    for (uint32_t number = me(); number < args->count; number += step) {
        read_mram(query_at, &work->query, query_bytes);
        uint32_t used = answer(work, query_bytes - 8, result_bytes);
        write_mram(result_at, work->result, used);
        query_at += query_step;
        result_at += result_step;
    }
    pim_cycles[me()] = CYCLES();
    return 0;
}
