//! Instructions that a process has executed, counted by the processor.
//!
//! They depend less than time on what else the machine does; a caller that stays awake and interrupts
//! are counted, too. A virtual machine may have no counter, and a container may not be allowed to ask
//! for one: then there is nothing to say.

use std::fs::{self, File};
use std::io::Read as _;
use std::os::fd::{FromRawFd as _, OwnedFd};

use integration::process::Process;
use rustix::io::Errno;

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
/// Beside the count, for how long it was wanted, and for how long it was really counted.
const WITH_TIMES: u64 = 1 | 2;
/// What a thread starts is counted, too.
const INHERIT: u64 = 1 << 1;
const EXCLUDE_KERNEL: u64 = 1 << 5;
const CLOSE_ON_EXEC: libc::c_long = 1 << 3;

/// Where they are executed.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Where {
    /// In the program and, for it, in the kernel.
    Everywhere,
    /// In the program alone.
    Program,
}

/// The counters of all threads of a process.
#[derive(Debug)]
pub(crate) struct Counters(Vec<File>);

// === impl Counters ===

impl Counters {
    /// Counts from now on; nothing if this machine cannot.
    pub(crate) fn of(process: Process, place: Where) -> Option<Self> {
        let mut threads = Vec::new();
        for thread in fs::read_dir(format!("/proc/{}/task", process.0)).ok()? {
            let thread = thread.ok()?.file_name();
            match counter(thread.to_str()?.parse().ok()?, place) {
                Ok(counter) => threads.push(counter),
                // It has ended meanwhile.
                Err(Errno::SRCH) => {}
                Err(_) => return None,
            }
        }
        Some(Self(threads))
    }

    /// How many there were so far; nothing if the processor had no room for the counter all the while.
    #[expect(clippy::cast_precision_loss, reason = "for ratios of large numbers")]
    pub(crate) fn read(&self) -> Option<f64> {
        let mut sum = 0;
        for mut thread in &self.0 {
            let mut words = [[0; 8]; 3];
            thread.read_exact(words.as_flattened_mut()).ok()?;
            let [count, wanted, counted] = words.map(u64::from_ne_bytes);
            if wanted != counted {
                return None;
            }
            sum += count;
        }
        Some(sum as f64)
    }
}

fn counter(thread: libc::pid_t, place: Where) -> Result<File, Errno> {
    let mut attributes = Attributes {
        kind: HARDWARE,
        size: u32::try_from(size_of::<Attributes>()).map_err(|_| Errno::INVAL)?,
        config: INSTRUCTIONS,
        read_format: WITH_TIMES,
        flags: match place {
            Where::Everywhere => INHERIT,
            Where::Program => INHERIT | EXCLUDE_KERNEL,
        },
        ..Attributes::default()
    };
    let (any_processor, no_group): (libc::c_long, libc::c_long) = (-1, -1);
    #[expect(unsafe_code, reason = "no crate of ours has this system call")]
    // SAFETY: `attributes` has the layout and the size that it says; the kernel reads it, and may write
    // its `size`.
    let descriptor = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            std::ptr::from_mut(&mut attributes),
            libc::c_long::from(thread),
            any_processor,
            no_group,
            CLOSE_ON_EXEC,
        )
    };
    if descriptor < 0 {
        let error = std::io::Error::last_os_error();
        return Err(Errno::from_io_error(&error).unwrap_or(Errno::INVAL));
    }
    let descriptor = i32::try_from(descriptor).map_err(|_| Errno::BADF)?;
    #[expect(unsafe_code, reason = "the descriptor is ours to close")]
    // SAFETY: the kernel has just made it, and nobody else knows of it.
    let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
    Ok(File::from(descriptor))
}
