/* What the kernel needs from its machine: a DPU, the emulator, or a compiler for RISC-V that only
 * measures the size of the code. Addresses of MRAM count from the start of the heap. */
#ifndef COPPICE_PIM_PLATFORM_H
#define COPPICE_PIM_PLATFORM_H

#include "record.h"

#if defined(__dpu__)

#include <alloc.h>
#include <barrier.h>
#include <defs.h>
#include <mram.h>
#include <perfcounter.h>

#define KERNEL_MAIN main
#define TASKLETS NR_TASKLETS
#define ARGS (&pim_args)
#define CYCLES() ((uint32_t)perfcounter_get())
#define COST(instructions)

__host struct pim_args pim_args;
__host uint32_t pim_cycles[TASKLETS_MAX];
BARRIER_INIT(pim_barrier, NR_TASKLETS);

static inline void start_tasklet(void) {
    if (me() == 0) {
        mem_reset();
        perfcounter_config(COUNT_CYCLES, true);
    }
    barrier_wait(&pim_barrier);
}

static inline void read_mram(uint32_t at, void *to, uint32_t bytes) {
    mram_read((__mram_ptr void const *)(DPU_MRAM_HEAP_POINTER + at), to, bytes);
}

static inline void write_mram(uint32_t at, const void *from, uint32_t bytes) {
    mram_write(from, (__mram_ptr void *)(DPU_MRAM_HEAP_POINTER + at), bytes);
}

#else

#define KERNEL_MAIN pim_kernel
#define TASKLETS emu_tasklets()
#define ARGS emu_args()
#define CYCLES() emu_cycles_now()
#if defined(PIM_PROXY)
#define COST(instructions)
#else
#define COST(instructions) emu_cost(instructions)
#endif
#define me emu_me
#define mem_alloc emu_mem_alloc
#define start_tasklet emu_start_tasklet
#define read_mram emu_read_mram
#define write_mram emu_write_mram
#define pim_cycles (emu_cycles())

uint32_t emu_me(void);
uint32_t emu_tasklets(void);
const struct pim_args *emu_args(void);
uint32_t *emu_cycles(void);
uint32_t emu_cycles_now(void);
void emu_cost(uint32_t instructions);
void emu_start_tasklet(void);
void *emu_mem_alloc(uint32_t bytes);
void emu_read_mram(uint32_t at, void *to, uint32_t bytes);
void emu_write_mram(uint32_t at, const void *from, uint32_t bytes);

int KERNEL_MAIN(void);

#endif

#endif
