//! The text format of Prometheus, version 0.0.4, made of the page that the library writes.
//!
//! `OpenMetrics` names a counter or an info without the suffix of its samples; the text format names
//! it as its samples are called, and knows neither the type `info` nor an end mark.

use std::fmt::Write as _;

/// `page`, which is in the format `OpenMetrics`, in the text format.
pub(super) fn from_open_metrics(page: &str) -> String {
    let mut text = String::with_capacity(page.len());
    let mut help = None;
    for line in page.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            help = rest.split_once(' ');
        } else if let Some((name, kind)) = described(line, "# TYPE ") {
            let (suffix, kind) = match kind {
                "counter" => ("_total", kind),
                "info" => ("_info", "gauge"),
                "unknown" => ("", "untyped"),
                _ => ("", kind),
            };
            if let Some((_, help)) = help.take() {
                let _ = writeln!(text, "# HELP {name}{suffix} {help}");
            }
            let _ = writeln!(text, "# TYPE {name}{suffix} {kind}");
        } else if !line.starts_with("# ") {
            text.push_str(line);
            text.push('\n');
        }
    }
    text
}

fn described<'a>(line: &'a str, mark: &str) -> Option<(&'a str, &'a str)> {
    line.strip_prefix(mark)?.split_once(' ')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_counters_and_infos_have_the_suffix_of_their_samples() {
        let page = "# HELP a Calls.\n# TYPE a counter\n# UNIT a x\na_total{b=\"# c\"} 1\n\
                    # HELP d What.\n# TYPE d info\nd_info{e=\"f\"} 1\n\
                    # HELP g Free.\n# TYPE g gauge\ng 2\n# EOF\n";
        let text = "# HELP a_total Calls.\n# TYPE a_total counter\na_total{b=\"# c\"} 1\n\
                    # HELP d_info What.\n# TYPE d_info gauge\nd_info{e=\"f\"} 1\n\
                    # HELP g Free.\n# TYPE g gauge\ng 2\n";
        assert_eq!(from_open_metrics(page), text);
    }
}
