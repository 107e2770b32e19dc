//! Instructions that a process has executed, counted by the processor.
//!
//! Unlike time they do not depend on what else the machine does. A virtual machine may have no counter,
//! and a container may not be allowed to ask for one: then there is nothing to say.

use std::fs::{self, File};
use std::io::Read as _;
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::time::Duration;

use integration::process::Process;

/// `perf_event_attr` of `linux/perf_event.h`, as long as its first version was.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    breakpoint_type: u32,
    breakpoint_address: u64,
}

const HARDWARE: u32 = 0;
const INSTRUCTIONS: u64 = 1;
/// What a thread starts is counted, too.
const INHERIT: u64 = 1 << 1;
const EXCLUDE_KERNEL: u64 = 1 << 5;
const CLOSE_ON_EXEC: libc::c_ulong = 1 << 3;

/// How many were executed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Executed {
    /// In the program and, for it, in the kernel.
    pub(crate) everywhere: f64,
    /// In the program alone.
    pub(crate) program: f64,
}

/// The counters of all threads of a process.
#[derive(Debug)]
pub(crate) struct Counters {
    everywhere: Vec<File>,
    program: Vec<File>,
}

// === impl Executed ===

impl Executed {
    /// Without what would have been executed in that time anyhow, at `idle` a second.
    pub(crate) fn without(self, idle: Self, time: Duration) -> Self {
        let seconds = time.as_secs_f64();
        Self {
            everywhere: self.everywhere - idle.everywhere * seconds,
            program: self.program - idle.program * seconds,
        }
    }
}

// === impl Counters ===

impl Counters {
    /// Counts from now on; nothing if this machine cannot.
    pub(crate) fn of(process: Process) -> Option<Self> {
        let (mut everywhere, mut program) = (Vec::new(), Vec::new());
        for thread in fs::read_dir(format!("/proc/{}/task", process.0)).ok()? {
            let thread = thread.ok()?.file_name();
            let thread = thread.to_str()?.parse().ok()?;
            everywhere.push(counter(thread, INHERIT)?);
            program.push(counter(thread, INHERIT | EXCLUDE_KERNEL)?);
        }
        Some(Self {
            everywhere,
            program,
        })
    }

    /// How many there were so far.
    pub(crate) fn read(&self) -> Option<Executed> {
        Some(Executed {
            everywhere: sum(&self.everywhere)?,
            program: sum(&self.program)?,
        })
    }
}

fn sum(counters: &[File]) -> Option<f64> {
    let mut sum = 0;
    for mut counter in counters {
        let mut count = [0; 8];
        counter.read_exact(&mut count).ok()?;
        sum += u64::from_ne_bytes(count);
    }
    #[expect(clippy::cast_precision_loss, reason = "for ratios of large numbers")]
    Some(sum as f64)
}

fn counter(thread: libc::pid_t, flags: u64) -> Option<File> {
    let attributes = Attributes {
        kind: HARDWARE,
        size: u32::try_from(size_of::<Attributes>()).ok()?,
        config: INSTRUCTIONS,
        flags,
        ..Attributes::default()
    };
    let (any_processor, no_group) = (-1, -1);
    #[expect(unsafe_code, reason = "no crate of ours has this system call")]
    // SAFETY: the kernel only reads `attributes`, which has the layout and the size that it says.
    let descriptor = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            std::ptr::from_ref(&attributes),
            thread,
            any_processor,
            no_group,
            CLOSE_ON_EXEC,
        )
    };
    let descriptor = i32::try_from(descriptor).ok().filter(|fd| *fd >= 0)?;
    #[expect(unsafe_code, reason = "a system call gives a number")]
    // SAFETY: the kernel has just made it, and nobody else knows of it.
    let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
    Some(File::from(descriptor))
}
