/* Programs that break one limit each: the emulator must fault on all of them. */
#include <string.h>

#include "../kernel/platform.h"
#include "machine.h"

#undef me
#undef mem_alloc

static uint8_t *buffer(uint32_t bytes) {
    emu_start_tasklet();
    return emu_mem_alloc(bytes);
}

static int none(void) {
    emu_read_mram(0, buffer(2048), 2048);
    return 0;
}

static int mram_alignment(void) {
    emu_read_mram(4, buffer(64), 8);
    return 0;
}

static int wram_alignment(void) {
    emu_read_mram(0, buffer(64) + 4, 8);
    return 0;
}

static int size_zero(void) {
    emu_read_mram(0, buffer(64), 0);
    return 0;
}

static int size_below(void) {
    emu_write_mram(0, buffer(64), 4);
    return 0;
}

static int size_odd(void) {
    emu_read_mram(0, buffer(64), 12);
    return 0;
}

static int size_above(void) {
    emu_read_mram(0, buffer(4096), 2056);
    return 0;
}

static int mram_end(void) {
    emu_write_mram(MRAM_BYTES_MAX - MRAM_HEAP - 8, buffer(64), 16);
    return 0;
}

static int mram_far(void) {
    emu_read_mram(UINT32_MAX - 7, buffer(64), 8);
    return 0;
}

static int wram_end(void) {
    emu_read_mram(0, buffer(64), 128);
    return 0;
}

static int wram_stack(void) {
    emu_start_tasklet();
    uint64_t on_stack[8];
    emu_read_mram(0, on_stack, sizeof on_stack);
    return on_stack[0] != 0;
}

static int heap(void) {
    emu_start_tasklet();
    for (uint32_t taken = 0; taken <= HEAP_BYTES; taken += 1024) memset(emu_mem_alloc(1024), 0, 1024);
    return 0;
}

static int heap_at_once(void) {
    emu_start_tasklet();
    return emu_mem_alloc(UINT32_MAX) == 0;
}

static int stack(void) {
    emu_start_tasklet();
    volatile uint8_t frame[2 * HOST_STACK_BYTES];
    frame[0] = 1;
    emu_cost(1);
    return frame[0] != 1;
}

static int failure(void) {
    emu_start_tasklet();
    return 1;
}

program_t violation(const char *name) {
    static const struct {
        const char *name;
        program_t program;
    } all[] = {
        {"none", none},
        {"MRAM alignment", mram_alignment},
        {"WRAM alignment", wram_alignment},
        {"size 0", size_zero},
        {"size 4", size_below},
        {"size 12", size_odd},
        {"size 2056", size_above},
        {"MRAM end", mram_end},
        {"MRAM far", mram_far},
        {"WRAM end", wram_end},
        {"WRAM stack", wram_stack},
        {"heap", heap},
        {"heap at once", heap_at_once},
        {"stack", stack},
        {"failure", failure},
    };
    for (size_t at = 0; at < sizeof all / sizeof *all; at++) {
        if (strcmp(all[at].name, name) == 0) return all[at].program;
    }
    return NULL;
}
