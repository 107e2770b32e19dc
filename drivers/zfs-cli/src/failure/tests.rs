//! The errors for messages; those of `zfs` are in `captured`.

use exec::{Command, Program, Status};

use super::*;

pub(super) fn failed(said: &str) -> RunError {
    let command = Command::new(Program::constant("zfs"));
    let output = Output {
        status: Status::Exit(1),
        stdout: Vec::new(),
        stderr: said.as_bytes().to_vec(),
    };
    output.check(&command).unwrap_err()
}

#[test]
fn an_end_that_was_not_seen_is_never_an_answer() {
    let command = Command::new(Program::constant("zfs")).masked();
    let lost = RunError::Lost {
        command,
        source: "cut".into(),
    };
    let failed = of(&lost, "change it", Effect::Possible);
    assert_eq!(
        (failed.error.kind(), failed.next),
        (Kind::Unreachable, Next::Tell)
    );
    assert_eq!(failed.error.effect(), Effect::Possible);
}

#[test]
fn only_a_right_that_is_missing_says_that_a_host_runs_no_channel_programs() {
    // Read in `zfs_main.c` of OpenZFS, and in the sources of sudo.
    for said in [
        "Channel program execution failed:\nPermission denied. Channel programs must be run as root.",
        "sudo: a password is required",
        "Sorry, user csi is not allowed to execute '/usr/sbin/zfs program -j tank -' as root on nas.",
    ] {
        assert!(runs_no_programs(&failed(said)), "{said}");
    }
    for said in [
        "",
        "Channel program execution failed:\nTimed out.",
        "Channel program execution failed:\nMemory limit exhausted.",
        "cannot open 'tank': no such pool",
        "sudo: unable to execute /usr/sbin/zfs: Cannot allocate memory",
    ] {
        assert!(!runs_no_programs(&failed(said)), "{said}");
    }
}

#[test]
fn what_nfsd_keeps_is_free_when_it_says() {
    let said = failed("cannot unmount tank/a: nfsd keeps it for 7 s");
    let failed = of(&said, "destroy tank/a", Effect::Possible);
    assert_eq!(failed.error.kind(), Kind::Busy);
    assert_eq!(failed.next, Next::WaitFor(Duration::from_secs(7)));
}

#[test]
fn absence_is_an_answer_only_if_nothing_else_was_complained_about() {
    let output = |code, stderr: &str| Output {
        status: Status::Exit(code),
        stdout: Vec::new(),
        stderr: stderr.into(),
    };
    assert!(is_only_absence(&output(0, "")));
    assert!(is_only_absence(&output(
        1,
        "cannot open 'tank/a': dataset does not exist\n"
    )));
    assert!(!is_only_absence(&output(1, "")));
    let both = "cannot open 'tank/a': dataset does not exist\ncannot open 'b': I/O error\n";
    assert!(!is_only_absence(&output(1, both)));
}

#[test]
fn words_of_other_tools_are_not_taken_for_those_of_zfs() {
    let said = failed("No such path /iscsi/iqn: it does not exist, and its pool is busy");
    let of_export = of_export(&said, Effect::Possible);
    assert_eq!(
        (of_export.error.kind(), of_export.next),
        (Kind::Internal, Next::Tell)
    );
    let said = failed("sudo: a password is required");
    assert_eq!(
        super::of_export(&said, Effect::Possible).error.kind(),
        Kind::Denied
    );
}

#[test]
fn an_export_on_a_suspended_pool_is_out_of_reach() {
    let said = failed("nqn.2003-01.org.example:a stays as it is, as its pool is suspended: tank");
    let error = super::of_export(&said, Effect::Possible).error;
    assert_eq!(error.kind(), Kind::Unreachable);
    assert!(error.chain().contains("nqn.2003-01.org.example:a stays"));
}

#[test]
fn a_failed_step_is_named_by_what_it_does_and_not_by_its_script() {
    let command = Command::new(Program::constant("sh")).args(["-c", "long; script"]);
    let output = Output {
        status: Status::Exit(1),
        stdout: Vec::new(),
        stderr: b"cannot destroy 'tank/a': dataset is busy".to_vec(),
    };
    let error = output.check(&command).unwrap_err();
    let said = of(&error, "destroy tank/a", Effect::Possible).error.chain();
    assert!(said.contains("destroy tank/a: "), "{said}");
    assert!(said.contains("dataset is busy"), "{said}");
    assert!(!said.contains("script"), "{said}");
}

#[test]
fn an_interrupted_copy_is_reported_without_the_resume_hint() {
    // Captured, 2.3.
    let said = "cannot receive new filesystem stream: checksum mismatch or incomplete stream.\n\
        Partially received snapshot is saved.\n\
        A resuming stream can be generated on the sending system by running:\n    \
        zfs send -t 1-fb8f3c285-e8-789c63\ncopy: 0 of 2 ends are done\n";
    let error = of(&failed(said), "copy it", Effect::Possible).error;
    assert_eq!(
        (error.kind(), error.effect()),
        (Kind::Internal, Effect::Possible)
    );
    let chain = error.chain();
    assert!(chain.contains("incomplete stream. Partially received snapshot is saved. copy: 0"));
    assert!(!chain.contains("1-fb8f"), "{chain}");
}

#[test]
fn a_program_that_sudo_does_not_find_says_nothing_of_the_pool() {
    // Read in the sources of sudo; the other line is ours.
    let said = "sudo: zfs: command not found\nits pool cannot be looked at";
    let error = of(&failed(said), "look", Effect::None).error;
    assert_eq!(
        (error.kind(), error.advice()),
        (Kind::Internal, Some(NOT_INSTALLED))
    );
    let output = Output {
        status: Status::Exit(1),
        stdout: Vec::new(),
        stderr: b"cannot open 'tank/a': dataset does not exist\nsudo: zfs: command not found"
            .to_vec(),
    };
    assert!(!is_only_absence(&output));
}

#[test]
fn a_program_that_is_not_installed_is_no_fault_of_the_request() {
    let command = Command::new(Program::constant("sh"));
    let output = Output {
        status: Status::Exit(127),
        stdout: Vec::new(),
        stderr: b"sh: 1: zfs: not found".to_vec(),
    };
    let failed = of(&output.check(&command).unwrap_err(), "look", Effect::None);
    assert_eq!(failed.error.kind(), Kind::Internal);
    assert!(
        failed.error.chain().contains("not installed"),
        "{}",
        failed.error.chain()
    );
}

#[test]
fn the_line_that_names_a_wrong_property_comes_first_and_the_usage_is_left_out() {
    let usage = "\tcreate [-Pnpuv] [-o property=value] ... <filesystem>\n".repeat(200);
    let said = format!("cannot create 'tank/v/a': invalid property 'recordsiz'\nusage:\n{usage}");
    let error = of(&failed(&said), "create tank/v/a", Effect::None).error;
    let chain = error.chain();
    assert!(
        chain.contains(
            "create tank/v/a: exit code 1: cannot create 'tank/v/a': invalid property 'recordsiz'"
        ),
        "{chain}"
    );
    assert!(!chain.contains("-Pnpuv"), "{chain}");
}

#[test]
fn a_failed_command_of_an_export_says_why_and_not_what_its_script_is() {
    let command = Command::new(Program::constant("sh")).args(["-c", "x=1; false #SCRIPT"]);
    let output = Output {
        status: Status::Exit(1),
        stdout: Vec::new(),
        stderr: b"LIO cannot open /dev/zvol/tank/a: it is busy\n".to_vec(),
    };
    let chain = of_export(&output.check(&command).unwrap_err(), Effect::Possible)
        .error
        .chain();
    assert!(
        chain.contains("exit code 1: LIO cannot open /dev/zvol/tank/a"),
        "{chain}"
    );
    assert!(!chain.contains("SCRIPT"), "{chain}");
}
