//! The emulator's limits, and the binary interface.

use std::path::Path;

use crate::{DpuApi, Dpus, Error, abi, layout};

#[test]
fn both_sides_have_the_same_sizes() {
    assert_eq!(abi::compiled_layout(), layout::LAYOUT);
}

#[test]
fn every_violation_of_a_limit_is_a_fault() {
    for (program, fault) in [
        ("none", "none"),
        ("MRAM alignment", "MRAM alignment"),
        ("WRAM alignment", "WRAM alignment"),
        ("size 0", "DMA size"),
        ("size 4", "DMA size"),
        ("size 12", "DMA size"),
        ("size 2056", "DMA size"),
        ("MRAM end", "MRAM end"),
        ("MRAM far", "MRAM end"),
        ("WRAM end", "WRAM bounds"),
        ("WRAM stack", "WRAM bounds"),
        ("heap", "heap"),
        ("heap at once", "heap"),
        ("stack", "stack"),
        ("failure", "program failed"),
    ] {
        for tasklets in [1, 16] {
            let profile = format!("tasklets={tasklets}");
            let allocated = Dpus::allocate(&DpuApi::emulator(), 2, &profile, &format!("emulator:{program}"));
            let mut dpus = allocated.expect("a program");
            let failed = dpus.launch().expect("a fault of a DPU is no error of the launch");
            assert_eq!((failed, dpus.fault(1).as_str()), (vec![fault != "none"; 2], fault), "{program}");
        }
    }
}

#[test]
fn the_heap_of_sixteen_tasklets_is_that_of_the_smaller_chip() {
    // The kernel's buffers for the longest results fit, and nothing much larger would.
    let mut dpus = Dpus::allocate(&DpuApi::emulator(), 1, "", "emulator:kernel").expect("the kernel");
    dpus.set_args(&[[0, 136, 4096, 2048, 0, 0]]).expect("arguments");
    assert_eq!(dpus.launch().expect("it runs"), [false]);
    dpus.set_args(&[[0, 136, 4096, 2056, 0, 0]]).expect("arguments");
    assert_eq!(dpus.launch().expect("it runs"), [true]);
}

#[test]
fn transfers_of_the_host_keep_to_words_and_to_the_memory() {
    let mut dpus = Dpus::allocate(&DpuApi::emulator(), 1, "mramBytes=4096", "emulator:kernel").expect("the kernel");
    let refused = |result: crate::Result<()>, code: i32| match result {
        Err(Error::Call { code: found, .. }) => assert_eq!(found, code),
        other => panic!("{other:?}"),
    };
    dpus.write(0, 8, &[1; 16]).expect("whole words");
    refused(dpus.write(0, 4, &[1; 16]), 10);
    refused(dpus.write(0, 8, &[1; 12]), 10);
    refused(dpus.write(0, 4096 - 64, &[1; 8]), 11);
    refused(dpus.push(0, &mut [Some(vec![0; 4])]), 10);
    assert_eq!(dpus.pull(0, 24, &[true]).expect("it is there"), [Some([[0; 8], [1; 8], [1; 8]].concat())]);
    // An error leaves nothing prepared.
    dpus.push(0, &mut [Some(vec![2; 8])]).expect("whole words");
    assert_eq!(dpus.pull(0, 8, &[true]).expect("it is there"), [Some(vec![2; 8])]);
}

#[test]
fn ranks_have_the_dpus_of_the_profile() {
    let dpus = Dpus::allocate(&DpuApi::emulator(), 7, "dpusPerRank=3", "emulator:kernel").expect("the kernel");
    assert_eq!((dpus.count(), dpus.ranks().collect::<Vec<_>>()), (7, vec![0..3, 3..6, 6..7]));
}

#[test]
fn what_is_not_there_is_refused() {
    for (count, profile, program) in [
        (0, "", "emulator:kernel"),
        (1, "tasklets=17", "emulator:kernel"),
        (1, "tasklets=0", "emulator:kernel"),
        (1, "dpusPerRank=65", "emulator:kernel"),
        (1, "mramBytes=67108872", "emulator:kernel"),
        (1, "", "kernel.dpu"),
        (1, "", "emulator:other"),
    ] {
        let allocated = Dpus::allocate(&DpuApi::emulator(), count, profile, program);
        assert!(matches!(allocated, Err(Error::Call { .. })), "{count} {profile} {program}");
    }
}

#[test]
fn without_the_library_there_is_no_table() {
    let refused = |name: &str| DpuApi::load(Path::new(name)).expect_err("it is no libdpu").to_string();
    let missing = refused("libdpu-that-nobody-has.so");
    assert!(missing.starts_with("no libdpu-that-nobody-has.so: cannot open"), "{missing}");
    // A library without the functions is not enough.
    let other = refused("libc.so.6");
    assert!(other.contains("dpu_alloc"), "{other}");
}
