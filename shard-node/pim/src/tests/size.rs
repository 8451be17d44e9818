//! The kernel's size and its stack, by a compiler for another small machine. The vendor's compiler
//! is no part of this project.

use std::{path::Path, process::Command};

/// Instructions of the smaller chip, less what the vendor's runtime may take.
const INSTRUCTIONS_MAX: u64 = 3968 - 1000;
const STACK_BYTES_MAX: u64 = 1024;

fn output(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("tools print text")
}

#[test]
fn the_kernel_fits_the_instruction_memory_and_its_stack() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let script = here.ancestors().nth(2).expect("this package lies two levels deep").join("scripts/install-riscv.sh");
    let tools = output(&mut Command::new(script));
    let tool = |name: &str| Command::new(format!("{}{name}", tools.trim()));
    let dir = std::env::temp_dir().join(format!("coppice-pim-size-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a folder for the object");
    let compile = |march: &str, object: &str| {
        let object = dir.join(object);
        let flags = ["-DPIM_PROXY", "-O2", "-ffreestanding", "-fstack-usage", "-Wall", "-Wextra", "-Werror", "-c"];
        let march = format!("-march={march}");
        output(
            tool("gcc").args(flags).args([&march, "-mabi=ilp32", "-o"]).arg(&object).arg(here.join("kernel/kernel.c")),
        );
        object
    };
    let object = compile("rv32im", "kernel.o");
    let sizes = output(tool("size").arg(&object));
    let text = sizes.lines().nth(1).and_then(|line| line.split_whitespace().next()).expect("a table of sizes");
    let instructions = text.parse::<u64>().expect("a number of bytes") / 4;
    println!("{instructions} instructions");
    assert!((100..=INSTRUCTIONS_MAX).contains(&instructions), "{instructions} instructions");

    // No function calls itself, so the frames of all of them together bound the stack.
    let usage = std::fs::read_to_string(object.with_extension("su")).expect("the compiler wrote it");
    assert!(!usage.contains("dynamic"), "every frame has a fixed size");
    let frame = |line: &str| line.split('\t').nth(1).and_then(|bytes| bytes.parse::<u64>().ok()).expect("a size");
    let stack: u64 = usage.lines().map(frame).sum();
    println!("{stack} bytes of stack at most");
    assert!((1..=STACK_BYTES_MAX).contains(&stack), "{stack} bytes of stack");

    // A machine without multiplication calls a function for each kind of it.
    let calls = output(tool("nm").arg("-u").arg(compile("rv32i", "plain.o")));
    for costly in ["__muldi3", "div", "mod"] {
        assert!(!calls.contains(costly), "the kernel needs {costly}:\n{calls}");
    }
    std::fs::remove_dir_all(dir).expect("the folder is ours");
}
