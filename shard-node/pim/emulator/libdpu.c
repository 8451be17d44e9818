/* The functions of the vendor's `libdpu` that the crate calls, under the same names and with the
 * same binary interface, over emulated machines. The interface is restated here.
 *
 * A profile is a list `key=value,..`: `dpusPerRank` (1 to 64), `tasklets` (1 to 16), `mramBytes`.
 * A program is named `emulator:kernel`, or `emulator:` and the name of a violation. */
#define _GNU_SOURCE
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "../kernel/platform.h"
#include "machine.h"

/* Numbers of the vendor's errors. */
enum error {
    OK = 0,
    ERR_SYSTEM = 2,
    ERR_ALLOCATION = 4,
    ERR_INVALID_DPU_SET = 5,
    ERR_INVALID_WRAM_ACCESS = 8,
    ERR_INVALID_MRAM_ACCESS = 10,
    ERR_INVALID_SYMBOL_ACCESS = 11,
    ERR_TRANSFER_ALREADY_SET = 13,
    ERR_DPU_FAULT = 20,
    ERR_ELF_NO_SUCH_FILE = 22,
    ERR_INVALID_PROFILE = 25,
    ERR_UNKNOWN_SYMBOL = 26,
};

enum { KIND_RANKS = 0, KIND_DPU = 1, DPUS_PER_RANK_MAX = 64, DPUS_MAX = 4096 };

struct dpu_t {
    struct machine machine;
    void *prepared;
    bool launched;
};

struct dpu_rank_t {
    uint32_t dpus_count;
    struct dpu_t *dpus;
};

struct dpu_set_t {
    uint32_t kind;
    union {
        struct {
            uint32_t nr_ranks;
            struct dpu_rank_t **ranks;
        } list;
        struct dpu_t *dpu;
    };
};

struct rank_iterator {
    struct dpu_set_t *set;
    uint32_t count;
    uint32_t next_idx;
    bool has_next;
    struct dpu_set_t next;
};

struct dpu_iterator {
    struct rank_iterator rank_iterator;
    uint32_t count;
    uint32_t next_idx;
    bool has_next;
    struct dpu_set_t next;
};

_Static_assert(sizeof(struct dpu_set_t) == 24, "a set is passed as 24 bytes");
_Static_assert(sizeof(struct rank_iterator) == 48, "iterators are passed by value");
_Static_assert(sizeof(struct dpu_iterator) == 88, "iterators are passed by value");

/* Calls `each` for all DPUs of a set, until one fails. */
static int for_each(struct dpu_set_t set, int (*each)(struct dpu_t *, void *), void *with) {
    if (set.kind == KIND_DPU) return set.dpu == NULL ? ERR_INVALID_DPU_SET : each(set.dpu, with);
    for (uint32_t rank = 0; rank < set.list.nr_ranks; rank++) {
        for (uint32_t dpu = 0; dpu < set.list.ranks[rank]->dpus_count; dpu++) {
            int error = each(&set.list.ranks[rank]->dpus[dpu], with);
            if (error != OK) return error;
        }
    }
    return OK;
}

/* A number of the profile: `fallback` without one, 0 if it is none. */
static uint32_t setting(const char *profile, const char *name, uint32_t fallback) {
    size_t length = strlen(name);
    for (const char *at = profile; at != NULL && *at != 0;) {
        if (strncmp(at, name, length) == 0 && at[length] == '=') {
            return (uint32_t)strtoul(at + length + 1, NULL, 10);
        }
        const char *comma = strchr(at, ',');
        at = comma == NULL ? NULL : comma + 1;
    }
    return fallback;
}

static void free_rank(struct dpu_rank_t *rank) {
    for (uint32_t dpu = 0; dpu < rank->dpus_count; dpu++) {
        struct machine *machine = &rank->dpus[dpu].machine;
        if (machine->mram != NULL) munmap(machine->mram, machine->mram_bytes);
        free(machine->wram);
    }
    free(rank->dpus);
    free(rank);
}

static struct dpu_rank_t *new_rank(uint32_t dpus, uint32_t tasklets, uint32_t mram_bytes) {
    struct dpu_rank_t *rank = calloc(1, sizeof *rank);
    if (rank == NULL) return NULL;
    rank->dpus = calloc(dpus, sizeof *rank->dpus);
    if (rank->dpus == NULL) {
        free(rank);
        return NULL;
    }
    rank->dpus_count = dpus;
    for (uint32_t dpu = 0; dpu < dpus; dpu++) {
        struct machine *machine = &rank->dpus[dpu].machine;
        machine->tasklets = tasklets;
        machine->mram_bytes = mram_bytes;
        /* Pages that nobody writes take no memory. */
        int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
        void *mram = mmap(NULL, mram_bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
        machine->mram = mram == MAP_FAILED ? NULL : mram;
        machine->wram = aligned_alloc(64, WRAM_BYTES);
        if (machine->mram == NULL || machine->wram == NULL) {
            free_rank(rank);
            return NULL;
        }
        memset(machine->wram, 0, WRAM_BYTES);
    }
    return rank;
}

int dpu_free(struct dpu_set_t set) {
    if (set.kind != KIND_RANKS) return ERR_INVALID_DPU_SET;
    for (uint32_t rank = 0; rank < set.list.nr_ranks; rank++) free_rank(set.list.ranks[rank]);
    free(set.list.ranks);
    return OK;
}

int dpu_alloc(uint32_t count, const char *profile, struct dpu_set_t *set) {
    uint32_t per_rank = setting(profile, "dpusPerRank", DPUS_PER_RANK_MAX);
    uint32_t tasklets = setting(profile, "tasklets", TASKLETS_MAX);
    uint32_t mram_bytes = setting(profile, "mramBytes", MRAM_BYTES_MAX);
    bool fits = per_rank >= 1 && per_rank <= DPUS_PER_RANK_MAX && tasklets >= 1 && tasklets <= TASKLETS_MAX;
    if (!fits || mram_bytes <= MRAM_HEAP || mram_bytes > MRAM_BYTES_MAX || mram_bytes % 8 != 0) {
        return ERR_INVALID_PROFILE;
    }
    if (count == 0 || count > DPUS_MAX) return ERR_ALLOCATION;
    uint32_t ranks = (count + per_rank - 1) / per_rank;
    memset(set, 0, sizeof *set);
    set->kind = KIND_RANKS;
    set->list.ranks = calloc(ranks, sizeof *set->list.ranks);
    if (set->list.ranks == NULL) return ERR_SYSTEM;
    for (; set->list.nr_ranks < ranks; set->list.nr_ranks++) {
        uint32_t left = count - set->list.nr_ranks * per_rank;
        struct dpu_rank_t *rank = new_rank(left < per_rank ? left : per_rank, tasklets, mram_bytes);
        if (rank == NULL) {
            dpu_free(*set);
            return ERR_SYSTEM;
        }
        set->list.ranks[set->list.nr_ranks] = rank;
    }
    return OK;
}

static int load(struct dpu_t *dpu, void *with) {
    dpu->machine.program = *(program_t *)with;
    return OK;
}

int dpu_load(struct dpu_set_t set, const char *path, void **program) {
    static const char head[] = "emulator:";
    if (path == NULL || strncmp(path, head, sizeof head - 1) != 0) return ERR_ELF_NO_SUCH_FILE;
    const char *name = path + sizeof head - 1;
    program_t found = strcmp(name, "kernel") == 0 ? KERNEL_MAIN : violation(name);
    if (found == NULL) return ERR_ELF_NO_SUCH_FILE;
    if (program != NULL) *program = NULL;
    return for_each(set, load, &found);
}

struct copy {
    const char *symbol;
    uint32_t offset;
    size_t bytes;
    void *host;
    bool to_dpu;
    bool prepared;
};

/* A part of a DPU's memory: WRAM takes multiples of 4 bytes, MRAM of 8. */
static int copy(struct dpu_t *dpu, void *with) {
    const struct copy *copy = with;
    struct machine *machine = &dpu->machine;
    uint8_t *memory;
    uint64_t size;
    uint32_t unit = 4;
    int outside = ERR_INVALID_WRAM_ACCESS;
    if (strcmp(copy->symbol, "pim_args") == 0) {
        memory = (uint8_t *)&machine->args;
        size = sizeof machine->args;
    } else if (strcmp(copy->symbol, "pim_cycles") == 0) {
        memory = (uint8_t *)machine->cycles;
        size = sizeof machine->cycles;
    } else if (strcmp(copy->symbol, "__sys_used_mram_end") == 0) {
        memory = machine->mram + MRAM_HEAP;
        size = machine->mram_bytes - MRAM_HEAP;
        unit = 8;
        outside = ERR_INVALID_MRAM_ACCESS;
    } else {
        return ERR_UNKNOWN_SYMBOL;
    }
    if (copy->offset % unit != 0 || copy->bytes % unit != 0) return outside;
    if (copy->offset > size || copy->bytes > size - copy->offset) return ERR_INVALID_SYMBOL_ACCESS;
    void *host = copy->prepared ? dpu->prepared : copy->host;
    dpu->prepared = copy->prepared ? NULL : dpu->prepared;
    /* A DPU without a buffer has no part in a transfer. */
    if (host == NULL) return copy->prepared ? OK : ERR_INVALID_SYMBOL_ACCESS;
    if (copy->to_dpu) memcpy(memory + copy->offset, host, copy->bytes);
    else memcpy(host, memory + copy->offset, copy->bytes);
    return OK;
}

int dpu_copy_to(struct dpu_set_t set, const char *symbol, uint32_t offset, const void *from, size_t bytes) {
    struct copy all = {symbol, offset, bytes, (void *)from, true, false};
    return for_each(set, copy, &all);
}

int dpu_copy_from(struct dpu_set_t set, const char *symbol, uint32_t offset, void *to, size_t bytes) {
    if (set.kind != KIND_DPU) return ERR_INVALID_DPU_SET;
    struct copy all = {symbol, offset, bytes, to, false, false};
    return for_each(set, copy, &all);
}

static int prepare(struct dpu_t *dpu, void *with) {
    bool taken = dpu->prepared != NULL && with != NULL;
    dpu->prepared = with;
    return taken ? ERR_TRANSFER_ALREADY_SET : OK;
}

int dpu_prepare_xfer(struct dpu_set_t set, void *buffer) { return for_each(set, prepare, buffer); }

int dpu_push_xfer(
    struct dpu_set_t set, uint32_t direction, const char *symbol, uint32_t offset, size_t bytes, uint32_t flags
) {
    (void)flags;
    struct copy all = {symbol, offset, bytes, NULL, direction == 0, true};
    return for_each(set, copy, &all);
}

/* All DPUs of the set run, also behind one that fails. */
static int launch(struct dpu_t *dpu, void *with) {
    dpu->launched = true;
    if (dpu->machine.program == NULL || machine_run(&dpu->machine) != FAULT_NONE) *(int *)with = ERR_DPU_FAULT;
    return OK;
}

static int faults(struct dpu_t *dpu, void *with) {
    if (dpu->machine.fault != FAULT_NONE) *(bool *)with = true;
    return OK;
}

int dpu_launch(struct dpu_set_t set, uint32_t policy) {
    int failed = OK;
    int error = for_each(set, launch, &failed);
    /* An asynchronous launch tells of a fault at `dpu_sync`. */
    return error != OK ? error : policy == 0 ? OK : failed;
}

int dpu_status(struct dpu_set_t set, bool *done, bool *fault) {
    *done = true;
    *fault = false;
    return for_each(set, faults, fault);
}

int dpu_sync(struct dpu_set_t set) {
    bool fault = false;
    int error = for_each(set, faults, &fault);
    return error != OK ? error : fault ? ERR_DPU_FAULT : OK;
}

void dpu_set_rank_iterator_next(struct rank_iterator *iterator) {
    struct dpu_set_t *set = iterator->set;
    iterator->count = iterator->next_idx;
    iterator->has_next = set->kind == KIND_RANKS && iterator->next_idx < set->list.nr_ranks;
    if (!iterator->has_next) return;
    iterator->next.kind = KIND_RANKS;
    iterator->next.list.nr_ranks = 1;
    iterator->next.list.ranks = set->list.ranks + iterator->next_idx;
    iterator->next_idx++;
}

struct rank_iterator dpu_set_rank_iterator_from(struct dpu_set_t *set) {
    struct rank_iterator iterator = {.set = set};
    dpu_set_rank_iterator_next(&iterator);
    return iterator;
}

void dpu_set_dpu_iterator_next(struct dpu_iterator *iterator) {
    struct rank_iterator *ranks = &iterator->rank_iterator;
    while (ranks->has_next && iterator->next_idx >= ranks->next.list.ranks[0]->dpus_count) {
        dpu_set_rank_iterator_next(ranks);
        iterator->next_idx = 0;
    }
    iterator->has_next = ranks->has_next;
    if (!iterator->has_next) return;
    iterator->next.kind = KIND_DPU;
    iterator->next.dpu = &ranks->next.list.ranks[0]->dpus[iterator->next_idx];
    iterator->next_idx++;
    iterator->count++;
}

struct dpu_iterator dpu_set_dpu_iterator_from(struct dpu_set_t *set) {
    struct dpu_iterator iterator = {.rank_iterator = dpu_set_rank_iterator_from(set)};
    dpu_set_dpu_iterator_next(&iterator);
    return iterator;
}

/* What the emulator alone has: faults to order, counts to read, and the sizes of all records. */

static int kill_after(struct dpu_t *dpu, void *with) {
    dpu->machine.kill_after = *(uint64_t *)with;
    return OK;
}

int emu_kill_after(struct dpu_set_t set, uint64_t transfers) { return for_each(set, kill_after, &transfers); }

const char *emu_fault(struct dpu_set_t set) {
    return set.kind == KIND_DPU ? fault_name(set.dpu->machine.fault) : "a set has no fault";
}

/* Transfers, bytes transferred and instructions of the last launch. */
void emu_counts(struct dpu_set_t set, uint64_t counts[3]) {
    if (set.kind != KIND_DPU) return;
    counts[0] = set.dpu->machine.transfers;
    counts[1] = set.dpu->machine.transfer_bytes;
    counts[2] = set.dpu->machine.instructions;
}

const uint32_t emu_layout[12] = {
    KEY_BYTES_MAX,
    ENTRIES_MAX,
    LEVELS_MAX,
    PREFIX_BYTES_MAX,
    HEAD_BYTES_MAX,
    RESULT_BYTES_MAX,
    HASH_BYTES,
    LEAF_TAIL_BYTES,
    INNER_TAIL_BYTES,
    sizeof(struct page_head),
    sizeof(struct result_head),
    sizeof(struct part_head),
};
