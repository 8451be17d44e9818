//! `coppice pim selftest`: times and conformance of memory modules that compute.

use std::{io::IsTerminal, sync::Arc, time::Duration};

use coppice_env::{Clock, SystemClock};
use coppice_pim::{Calibration, DpuApi, Dpus, Error, LookupCost, Report, Step, selftest};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};

use crate::{
    args::{Pim, PimSelftest},
    failure::{Code, Failure},
    output::{Output, tell_line},
    text,
};

/// The name by which the emulator knows the kernel.
const EMULATED_PROGRAM: &str = "emulator:kernel";
const MODELLED: &str = "modelled for UPMEM v1A from published constants, not run on hardware";

pub fn pim(command: &Pim, output: Output) -> Result<(), Failure> {
    let Pim::Selftest(args) = command;
    let dpus = allocate(args)?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let progress = Progress::new(output);
    let tested = selftest(dpus, &clock, |step| progress.begin(step));
    progress.bar.finish_and_clear();
    let report = tested.map_err(|error| failed(&error))?;
    output.result(&object(&report), || people(&report))
}

fn allocate(args: &PimSelftest) -> Result<Dpus, Failure> {
    let (api, program) = if args.emulator {
        (DpuApi::emulator(), EMULATED_PROGRAM)
    } else {
        (DpuApi::load(&args.library).map_err(|error| failed(&error))?, args.program.as_str())
    };
    Dpus::allocate(&api, args.dpus, &args.profile, program).map_err(|error| failed(&error))
}

/// The failure for an error of the library or of a DPU, with what to do about it.
fn failed(error: &Error) -> Failure {
    let message = text::safe(&error.to_string());
    match error {
        Error::NoLibrary { .. } => Failure::new(Code::Unavailable, message)
            .hint("Install the vendor's software, name its library by --library, or test the --emulator."),
        Error::Call { call: "dpu_alloc", .. } => Failure::new(Code::Unavailable, message)
            .hint("Are there as many free DPUs as --dpus says, and does the library know the --profile?"),
        Error::Call { call: "dpu_load", .. } => Failure::new(Code::Unavailable, message)
            .hint("Is --program the file that `make -C shard-node/pim/kernel` makes?"),
        Error::Setting(_) => Failure::usage(message),
        Error::Mismatch(_) => Failure::new(Code::NotFound, message)
            .hint("These DPUs give other answers than the engine: do not let a reader use them."),
        _ => Failure::new(Code::Unavailable, message),
    }
}

/// The number of the step on standard error: as a bar on a terminal, else a line for each.
struct Progress {
    bar: ProgressBar,
    lines: bool,
}

impl Progress {
    fn new(output: Output) -> Self {
        let terminal = std::io::stderr().is_terminal();
        let bar = if output.json || !terminal {
            ProgressBar::hidden()
        } else {
            let style = ProgressStyle::with_template("[{pos}/{len}] {msg} {spinner}").expect("the template is sound");
            let bar = ProgressBar::new(Step::ALL.len() as u64).with_style(style);
            bar.enable_steady_tick(Duration::from_millis(200));
            bar
        };
        Self { bar, lines: !output.json && !terminal }
    }

    fn begin(&self, step: Step) {
        let number = Step::ALL.iter().position(|other| *other == step).map_or(0, |index| index + 1);
        self.bar.set_position(number as u64);
        self.bar.set_message(step.name());
        if self.lines {
            tell_line(&format!("[{number}/{}] {}", Step::ALL.len(), step.name()));
        }
    }
}

fn object(report: &Report) -> Value {
    let Report { modelled, dpus, calibration, lookups, cost, break_even } = report;
    let Calibration { clock_hz, launch_s, up_bytes_s, down_bytes_s, rank_dpus, lookup_cycles, host_lookup_s } =
        calibration;
    let LookupCost { transfers, bytes, instructions, .. } = cost;
    json!({
        "conforms": true,
        "modelled": modelled,
        "dpus": dpus,
        "lookups": lookups,
        "break_even_lookups": break_even,
        "calibration": {
            "clock_hz": clock_hz, "launch_s": launch_s, "up_bytes_s": up_bytes_s, "down_bytes_s": down_bytes_s,
            "rank_dpus": rank_dpus, "lookup_cycles": lookup_cycles, "host_lookup_s": host_lookup_s,
        },
        "emulated_lookup": { "transfers": transfers, "bytes": bytes, "instructions": instructions },
    })
}

fn people(report: &Report) -> String {
    let Report { modelled, dpus, calibration, lookups, cost, break_even } = report;
    let LookupCost { transfers, bytes, instructions, .. } = cost;
    let source = if *modelled { MODELLED } else { "measured" };
    let break_even = match break_even {
        Some(lookups) => format!("from {lookups} lookups in a batch on, these DPUs end before one core of this host"),
        None => "one core of this host ends before these DPUs, however large the batch".to_owned(),
    };
    let Calibration { launch_s, up_bytes_s, down_bytes_s, lookup_cycles, host_lookup_s, .. } = calibration;
    format!(
        "{dpus} DPUs conform: {lookups} lookups, each proof equal to the emulator's and the engine's\n\
         launch {:.3} ms, to a rank {:.2} GB/s, from a rank {:.2} GB/s: {source}\n\
         a lookup on the emulator: {transfers:.1} transfers, {bytes:.0} bytes, {instructions:.0} instructions, \
         {lookup_cycles:.0} cycles of a busy DPU\n\
         a lookup on this host: {:.2} us, measured\n\
         {break_even} ({})",
        launch_s * 1e3,
        up_bytes_s / 1e9,
        down_bytes_s / 1e9,
        host_lookup_s * 1e6,
        if *modelled { "modelled" } else { "measured, but for the cycles of a lookup" },
    )
}
