//! Compiles the emulator, with the kernel inside, for this machine.

fn main() {
    let files = ["kernel/kernel.c", "emulator/machine.c", "emulator/libdpu.c", "emulator/violations.c"];
    let headers = ["kernel/platform.h", "kernel/record.h", "emulator/machine.h"];
    for file in files.iter().chain(&headers) {
        println!("cargo::rerun-if-changed={file}");
    }
    cc::Build::new()
        .files(files)
        .std("c11")
        .opt_level(2)
        // A stack's end is found by addresses of frames, which must stay frames of their own.
        .flag("-fno-omit-frame-pointer")
        .extra_warnings(true)
        .compile("coppice_pim_emulator");
}
