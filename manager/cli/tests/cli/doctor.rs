//! `aliquot doctor` must be helpful on any machine.

use serde_json::Value;

use crate::support::{aliquot, output, stderr, stdout};

#[test]
fn every_finding_that_is_not_well_says_what_to_do() {
    let ended = output(&mut aliquot(["doctor", "--json"]));
    let text = stdout(&ended);
    let value: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}{}", stderr(&ended)));
    let findings = value["findings"].as_array().unwrap();
    for finding in findings {
        let well = finding["status"] == "ok";
        assert!(well || finding["remedy"].as_str().is_some_and(|remedy| !remedy.is_empty()), "{finding}");
    }
    for what in [
        "shim",
        "glibc",
        "fork",
        "pidfd",
        "SO_PEERPIDFD",
        "futex",
        "runtime directory",
        "embedded manager",
        "node manager",
    ] {
        assert!(findings.iter().any(|finding| finding["what"] == what), "{what}: {text}");
    }
    let fails = findings.iter().any(|finding| finding["status"] == "fail");
    assert_eq!(value["healthy"], !fails);
    assert_eq!(ended.status.code(), Some(i32::from(fails)));
}

#[test]
fn colours_only_on_a_terminal() {
    let text = stdout(&output(&mut aliquot(["doctor"])));
    assert!(!text.contains('\x1b'), "{text}");
    assert!(text.contains("glibc"), "{text}");
}
