//! Templates against the captured output of Handlebars.js.

use driver_core::template::{MAX_OUTPUT, MAX_SOURCE, Template, TemplateError};
use proptest::prelude::*;
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Deserialize)]
struct Fixture {
    data: Vec<Value>,
    same: Vec<Same>,
    refused: Vec<Refused>,
}

#[derive(Deserialize)]
struct Same {
    data: usize,
    template: String,
    expected: String,
}

#[derive(Deserialize)]
struct Refused {
    template: String,
}

fn fixture() -> Fixture {
    serde_json::from_str(include_str!("../fixtures/handlebars.json")).expect("the fixture")
}

#[test]
fn the_output_is_that_of_the_original_byte_for_byte() {
    let fixture = fixture();
    assert!(fixture.same.len() >= 40);
    for case in fixture.same {
        let rendered = Template::compile(&case.template)
            .and_then(|template| template.render(&fixture.data[case.data]));
        assert_eq!(rendered, Ok(case.expected), "{:?}", case.template);
    }
}

#[test]
fn what_the_original_renders_otherwise_or_not_at_all_is_refused_when_it_is_read() {
    for case in fixture().refused {
        assert!(
            Template::compile(&case.template).is_err(),
            "{:?}",
            case.template
        );
    }
}

#[test]
fn a_long_output_a_long_template_and_deep_nesting_are_refused() {
    let data = json!({"name": "n".repeat(1000), "parameters": {}});
    let long = Template::compile(&"{{name}}".repeat(100)).unwrap();
    assert!(matches!(
        long.render(&data),
        Err(TemplateError::TooLong {
            limit: MAX_OUTPUT,
            ..
        })
    ));
    let fits = Template::compile(&"{{name}}".repeat(65)).unwrap();
    assert_eq!(fits.render(&data).unwrap().len(), 65_000);
    assert!(matches!(
        Template::compile(&"n".repeat(MAX_SOURCE + 1)),
        Err(TemplateError::TooLong { .. })
    ));
    for nest in [
        "{{#if a}}",
        "{{lookup (a ",
        "{{lookup a [",
        "{{lookup a {\"a\":",
        "{{{",
        "{{#each ",
    ] {
        assert!(
            Template::compile(&nest.repeat(MAX_SOURCE / nest.len())).is_err(),
            "{nest}"
        );
    }
}

#[test]
fn loops_within_loops_end_before_they_are_work_for_years() {
    let each = |levels| {
        let source = "{{#each @root.p}}".repeat(levels) + "{{name}}" + &"{{/each}}".repeat(levels);
        Template::compile(&source).unwrap()
    };
    let entries = |count| -> Value {
        let entry = |index| (format!("k{index}"), json!("x"));
        json!({"p": (0..count).map(entry).collect::<Value>()})
    };
    for (levels, count) in [(1, 1000), (2, 100), (20, 1)] {
        assert_eq!(each(levels).render(&entries(count)), Ok(String::new()));
    }
    for (levels, count) in [(2, 101), (20, 2), (32, 1000)] {
        assert!(matches!(
            each(levels).render(&entries(count)),
            Err(TemplateError::Render(_))
        ));
    }
    // One after the other they add up only.
    let flat = Template::compile(&"{{#each @root.p}}{{/each}}".repeat(30)).unwrap();
    assert_eq!(flat.render(&entries(1000)), Ok(String::new()));
}

#[test]
fn a_message_is_one_line_although_it_quotes_the_template() {
    for source in ["{{@a.[b\nc]}}", "{{lookup a \"\n\"}", "{{#if a}}\n{{/b\n}}"] {
        let message = Template::compile(source).unwrap_err().to_string();
        assert!(!message.contains(char::is_control), "{message:?}");
    }
}

#[test]
fn data_of_another_kind_are_an_error_and_never_print_otherwise() {
    let template = Template::compile("{{name}}").unwrap();
    for data in [
        json!({"name": ["a"]}),
        json!({"name": 1e21}),
        json!({"name": true}),
    ] {
        assert!(template.render(&data).is_err(), "{data}");
    }
}

proptest! {
    #[test]
    fn no_template_panics(source in "[{}#/~!^&a-c\\[\\]() \\.\"'@\n]{0,60}") {
        if let Ok(template) = Template::compile(&source) {
            let _ = template.render(&json!({"a": "x", "b": {"c": "y"}}));
        }
    }

    #[test]
    fn values_are_escaped_and_nothing_of_them_is_interpreted(value in "\\PC{0,40}") {
        let data = json!({"name": value});
        let raw = Template::compile("{{{name}}}").unwrap().render(&data).unwrap();
        prop_assert_eq!(&raw, &value);
        let escaped = Template::compile("{{name}}").unwrap().render(&data).unwrap();
        prop_assert!(!escaped.contains(['<', '>', '"', '\'', '`']));
    }
}
