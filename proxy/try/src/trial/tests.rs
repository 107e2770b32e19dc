use super::*;

#[test]
fn sizes_are_read_with_and_without_a_unit() {
    for (text, bytes) in [
        ("1", 1),
        ("64Mi", 64 << 20),
        ("2Gi", 2 << 30),
        ("2GiB", 2 << 30),
        ("1G", 1_000_000_000),
    ] {
        assert_eq!(text.parse::<Size>(), Ok(Size(bytes)), "{text}");
    }
    for bad in [
        "",
        "0",
        "-1",
        "1.5Gi",
        "Gi",
        "1 Gi",
        "1gi",
        "9223372036854775808",
        "9000000Ti",
    ] {
        assert!(bad.parse::<Size>().is_err(), "{bad}");
    }
}

#[test]
fn sizes_are_shown_as_people_say_them() {
    for (bytes, text) in [
        (1, "1 bytes"),
        (1 << 20, "1 MiB"),
        (1 << 30, "1 GiB"),
        (3 << 29, "1.5 GiB"),
        (i64::MAX, "7.9 EiB"),
    ] {
        assert_eq!(Size(bytes).to_string(), text);
    }
}

#[test]
fn names_differ_and_can_be_recognised() {
    let (one, other) = (TrialName::new(), TrialName::new());
    assert_ne!(one, other);
    assert!(one.as_str().starts_with("omnibus-try-"));
    assert_eq!(one.as_str().len(), "omnibus-try-".len() + 8);
}

#[test]
fn secrets_are_read_as_lines_or_as_json_and_never_shown() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("secrets");
    for text in [
        "# mine\nuser=me\npassword=hunter2=x\n",
        r#"{"user":"me","password":"hunter2=x"}"#,
    ] {
        std::fs::write(&file, text).unwrap();
        let secrets = secrets(&file).unwrap();
        assert_eq!(secrets["password"].expose_secret(), "hunter2=x");
        assert!(!format!("{secrets:?}").contains("hunter2"));
    }
    for bad in ["password\n", r#"{"password": ["hunter2"]}"#] {
        std::fs::write(&file, bad).unwrap();
        let problem = secrets(&file).unwrap_err();
        assert!(
            problem.starts_with("line 1") && !problem.contains("hunter2"),
            "{problem}"
        );
    }
}
