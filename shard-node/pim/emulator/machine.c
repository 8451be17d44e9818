/* Tasklets as coroutines on one host thread. The tasklet with the earliest clock runs next, until
 * its next transfer, so an order of transfers is that of the clock, and a run can be repeated.
 *
 * The clock is modelled from published constants (docs/pim.md): a tasklet issues one instruction
 * per 11 cycles at most and all together one per cycle; a read of n bytes takes 77 + n/2 cycles and
 * a write 61 + n/2; the transfer engine is busy for 35 + 0.54 n of them. */
#define _GNU_SOURCE
#include "machine.h"

#include <stdlib.h>
#include <string.h>

#include "../kernel/platform.h"

#undef me
#undef mem_alloc

/* The machine whose coroutine runs on this thread. */
static _Thread_local struct machine *here;

static struct tasklet *self(void) { return &here->running[here->current]; }

/* Ends the launch. The other tasklets stay where they are and are dropped. */
static void fail(enum fault fault) {
    here->fault = fault;
    setcontext(&here->scheduler);
    abort();
}

static void pause_tasklet(void) { swapcontext(&self()->context, &here->scheduler); }

static void check_stack(void) {
    uint8_t probe;
    /* Frames grow towards lower addresses from the end of the tasklet's stack. */
    ptrdiff_t used = self()->stack + COROUTINE_BYTES - &probe;
    if (used < 0 || used > HOST_STACK_BYTES) fail(FAULT_STACK);
}

uint32_t emu_me(void) { return here->current; }

uint32_t emu_tasklets(void) { return here->tasklets; }

const struct pim_args *emu_args(void) { return &here->args; }

uint32_t *emu_cycles(void) { return here->cycles; }

void emu_cost(uint32_t instructions) {
    self()->instructions += instructions;
    check_stack();
}

/* Lets the time of the instructions since the last transfer pass. */
static void pass_instructions(void) {
    struct tasklet *tasklet = self();
    double begin = tasklet->clock > here->pipeline_free ? tasklet->clock : here->pipeline_free;
    double alone = tasklet->clock + 11.0 * tasklet->instructions;
    here->pipeline_free = begin + tasklet->instructions;
    tasklet->clock = alone > here->pipeline_free ? alone : here->pipeline_free;
    here->instructions += tasklet->instructions;
    tasklet->instructions = 0;
}

uint32_t emu_cycles_now(void) {
    pass_instructions();
    return (uint32_t)self()->clock;
}

void emu_start_tasklet(void) {
    if (here->current == 0) here->heap_used = 0;
    self()->waits = 1;
    pause_tasklet();
}

void *emu_mem_alloc(uint32_t bytes) {
    check_stack();
    uint64_t rounded = ((uint64_t)bytes + 7) & ~(uint64_t)7;
    if (rounded > (uint64_t)HEAP_BYTES - here->heap_used) fail(FAULT_HEAP);
    void *at = here->wram + here->heap_used;
    here->heap_used += (uint32_t)rounded;
    return at;
}

/* Checks a transfer, waits for its turn and lets its time pass. */
static void transfer(uint32_t at, const uint8_t *wram, uint32_t bytes, double latency) {
    check_stack();
    if (bytes < 8 || bytes > DMA_BYTES_MAX || bytes % 8 != 0) fail(FAULT_DMA_SIZE);
    if (at % 8 != 0) fail(FAULT_MRAM_ALIGNMENT);
    if ((uintptr_t)wram % 8 != 0) fail(FAULT_WRAM_ALIGNMENT);
    uintptr_t low = (uintptr_t)here->wram, to = (uintptr_t)wram;
    if (to < low || to - low > here->heap_used || here->heap_used - (to - low) < bytes) fail(FAULT_WRAM_BOUNDS);
    uint32_t room = here->mram_bytes - MRAM_HEAP;
    if (at > room || room - at < bytes) fail(FAULT_MRAM_END);
    pass_instructions();
    pause_tasklet();
    here->transfers++;
    here->transfer_bytes += bytes;
    if (here->kill_after != 0 && here->transfers >= here->kill_after) fail(FAULT_KILLED);
    struct tasklet *tasklet = self();
    double begin = tasklet->clock > here->engine_free ? tasklet->clock : here->engine_free;
    here->engine_free = begin + 35.0 + 0.54 * bytes;
    tasklet->clock = begin + latency + 0.5 * bytes;
}

void emu_read_mram(uint32_t at, void *to, uint32_t bytes) {
    transfer(at, to, bytes, 77.0);
    memcpy(to, here->mram + MRAM_HEAP + at, bytes);
}

void emu_write_mram(uint32_t at, const void *from, uint32_t bytes) {
    transfer(at, from, bytes, 61.0);
    memcpy(here->mram + MRAM_HEAP + at, from, bytes);
}

/* The first frame of a coroutine. */
static void begin(void) {
    int failed = here->program();
    self()->running = 0;
    if (failed) fail(FAULT_EXIT);
    setcontext(&here->scheduler);
}

/* The runnable tasklet with the earliest clock; -1 if all have ended. */
static int next_tasklet(struct machine *machine) {
    int next = -1, waiting = 0;
    for (uint32_t number = 0; number < machine->tasklets; number++) {
        const struct tasklet *tasklet = &machine->running[number];
        if (!tasklet->running) continue;
        if (tasklet->waits) waiting = 1;
        else if (next < 0 || tasklet->clock < machine->running[next].clock) next = (int)number;
    }
    if (next >= 0 || !waiting) return next;
    /* All that are left wait at the barrier. */
    for (uint32_t number = 0; number < machine->tasklets; number++) machine->running[number].waits = 0;
    return next_tasklet(machine);
}

enum fault machine_run(struct machine *machine) {
    struct machine *before = here;
    here = machine;
    machine->fault = FAULT_NONE;
    machine->transfers = machine->transfer_bytes = machine->instructions = 0;
    machine->engine_free = machine->pipeline_free = 0;
    machine->heap_used = 0;
    memset(machine->cycles, 0, sizeof machine->cycles);
    machine->running = calloc(machine->tasklets, sizeof *machine->running);
    uint8_t *stacks = malloc((size_t)machine->tasklets * COROUTINE_BYTES);
    if (machine->running == NULL || stacks == NULL) abort();
    for (uint32_t number = 0; number < machine->tasklets; number++) {
        struct tasklet *tasklet = &machine->running[number];
        tasklet->running = 1;
        tasklet->stack = stacks + (size_t)number * COROUTINE_BYTES;
        getcontext(&tasklet->context);
        tasklet->context.uc_stack.ss_sp = tasklet->stack;
        tasklet->context.uc_stack.ss_size = COROUTINE_BYTES;
        tasklet->context.uc_link = NULL;
        makecontext(&tasklet->context, begin, 0);
    }
    /* Each coroutine comes back here by a pause, its end or a fault. */
    getcontext(&machine->scheduler);
    here = machine;
    if (machine->fault == FAULT_NONE) {
        int next = next_tasklet(machine);
        if (next >= 0) {
            machine->current = (uint32_t)next;
            setcontext(&machine->running[next].context);
        }
    }
    free(machine->running);
    free(stacks);
    machine->running = NULL;
    here = before;
    return machine->fault;
}

const char *fault_name(enum fault fault) {
    static const char *const names[] = {
        "none",      "MRAM alignment", "WRAM alignment", "DMA size",       "MRAM end",
        "WRAM bounds", "heap",         "stack",          "program failed", "killed",
    };
    return names[fault];
}
