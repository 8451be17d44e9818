/* One emulated DPU: its memories, its tasklets, its limits and its clock. */
#ifndef COPPICE_PIM_MACHINE_H
#define COPPICE_PIM_MACHINE_H

#include <stddef.h>
#include <stdint.h>
#include <ucontext.h>

#include "../kernel/record.h"

/* Limits of chip v1B, the smaller ones of both chips. */
enum {
    WRAM_BYTES = 63488,
    /* Stacks of 16 tasklets, and what the vendor's runtime and the kernel's globals take. */
    DPU_STACK_BYTES = 1024,
    GLOBAL_BYTES = 2048,
    HEAP_BYTES = WRAM_BYTES - TASKLETS_MAX * DPU_STACK_BYTES - GLOBAL_BYTES,
    DMA_BYTES_MAX = 2048,
    MRAM_BYTES_MAX = 64 << 20,
    /* Where the heap of MRAM starts, so that an address is not taken for an offset. */
    MRAM_HEAP = 64,
    /* Frames of the host hold pointers of 8 bytes and those of the emulator. */
    HOST_STACK_BYTES = 4096,
    COROUTINE_BYTES = 64 << 10,
};

enum fault {
    FAULT_NONE,
    FAULT_MRAM_ALIGNMENT,
    FAULT_WRAM_ALIGNMENT,
    FAULT_DMA_SIZE,
    FAULT_MRAM_END,
    FAULT_WRAM_BOUNDS,
    FAULT_HEAP,
    FAULT_STACK,
    FAULT_EXIT,
    FAULT_KILLED,
};

typedef int (*program_t)(void);

struct tasklet {
    ucontext_t context;
    /* In cycles since the launch. */
    double clock;
    /* Since its last transfer. */
    uint32_t instructions;
    int running;
    int waits;
    uint8_t *stack;
};

struct machine {
    uint8_t *mram;
    uint32_t mram_bytes;
    uint8_t *wram;
    struct pim_args args;
    uint32_t cycles[TASKLETS_MAX];
    uint32_t tasklets;
    program_t program;
    enum fault fault;
    /* The launch fails after this many transfers. 0: it does not. */
    uint64_t kill_after;
    uint64_t transfers;
    uint64_t transfer_bytes;
    uint64_t instructions;
    /* State of a launch. */
    struct tasklet *running;
    uint32_t current;
    uint32_t heap_used;
    double engine_free;
    double pipeline_free;
    ucontext_t scheduler;
};

/* Runs the program on all tasklets to its end or first fault. Returns the fault. */
enum fault machine_run(struct machine *machine);

const char *fault_name(enum fault fault);

/* Programs that break one limit each; null for an unknown name. */
program_t violation(const char *name);

#endif
