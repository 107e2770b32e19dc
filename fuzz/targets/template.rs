//! A name template: compiled, then rendered with untrusted parameters.
//!
//! Input: the template, a name, then keys and values in turn, as parts.
#![no_main]

use driver_core::template::{MAX_OUTPUT, MAX_SOURCE, Template};
use fuzz::one_line;
use libfuzzer_sys::{Corpus, fuzz_target};
use std::collections::BTreeMap;

fuzz_target!(|data: &[u8]| -> Corpus {
    let Some(mut parts) = fuzz::parts(data) else {
        return Corpus::Reject;
    };
    let source = parts.next().unwrap_or_default();
    let name = parts.next().unwrap_or_default();
    let mut parameters = BTreeMap::new();
    while let Some(key) = parts.next() {
        parameters.insert(key, parts.next().unwrap_or_default());
    }
    let template = match Template::compile(source) {
        Ok(template) => template,
        Err(error) => {
            let _ = one_line(error);
            return Corpus::Keep;
        }
    };
    assert!(template.source() == source && source.len() <= MAX_SOURCE);
    let again = Template::compile(source).expect("it compiled before");
    let text = BTreeMap::from([("name", name)]);
    let nested = BTreeMap::from([("parameters", parameters.clone()), ("flat", text.clone())]);
    for data in [
        serde_json::json!(text),
        serde_json::json!(nested),
        serde_json::json!(parameters),
    ] {
        let rendered = template.render(&data);
        match &rendered {
            Ok(text) => {
                assert!(text.len() <= MAX_OUTPUT);
                if !source.contains(['{', '\\']) {
                    assert_eq!(text, source, "plain text is itself");
                }
            }
            Err(error) => drop(one_line(error)),
        }
        assert_eq!(rendered, again.render(&data), "the same data, another name");
    }
    Corpus::Keep
});
