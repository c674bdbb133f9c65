//! The findings of a case, which a worker sends to the check as one line of JSON.

use serde::{Deserialize, Serialize};

/// One checked expectation.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Finding {
    /// The requirement that was checked, in words.
    pub(crate) what: String,
    /// Whether it holds.
    pub(crate) verdict: Verdict,
    /// The observation; empty if the verdict is enough.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) saw: String,
}

/// Whether an expectation holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Verdict {
    /// It holds.
    Holds,
    /// It does not hold.
    Fails,
    /// It cannot be checked on this device or driver.
    Skipped,
}

/// An answer of the driver that must be the same in all three ways.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Answer {
    /// The question to the driver.
    pub(crate) asked: String,
    /// The answer.
    pub(crate) answer: String,
}

/// A measured figure, which is not judged.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Figure {
    /// The name of the figure.
    pub(crate) what: String,
    /// The value.
    pub(crate) value: f64,
    /// The unit: `us`, `MiB`, `percent`.
    pub(crate) unit: String,
}

/// All findings of a case.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Findings {
    /// The checked expectations, in order.
    pub(crate) findings: Vec<Finding>,
    /// The driver's answers, in order.
    #[serde(default)]
    pub(crate) answers: Vec<Answer>,
    /// The measured figures, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) figures: Vec<Figure>,
}

impl Findings {
    /// Records whether `what` holds, and the observation.
    pub(crate) fn expect(&mut self, what: impl Into<String>, holds: bool, saw: impl Into<String>) {
        let verdict = if holds { Verdict::Holds } else { Verdict::Fails };
        self.findings.push(Finding { what: what.into(), verdict, saw: saw.into() });
    }

    /// Records whether `got` is a success.
    pub(crate) fn expect_ok<T, E: ToString>(&mut self, what: impl Into<String>, got: Result<T, E>) -> Option<T> {
        match got {
            Ok(value) => {
                self.expect(what, true, "");
                Some(value)
            }
            Err(error) => {
                self.expect(what, false, error.to_string());
                None
            }
        }
    }

    /// Records a measured figure.
    pub(crate) fn figure(&mut self, what: impl Into<String>, value: f64, unit: &str) {
        self.figures.push(Figure { what: what.into(), value, unit: unit.to_owned() });
    }

    /// Records that `what` cannot be checked here, and why.
    pub(crate) fn skip(&mut self, what: impl Into<String>, why: impl Into<String>) {
        self.findings.push(Finding { what: what.into(), verdict: Verdict::Skipped, saw: why.into() });
    }

    /// Records an answer that must be the same in all ways.
    pub(crate) fn answer(&mut self, asked: impl Into<String>, answer: impl Into<String>) {
        self.answers.push(Answer { asked: asked.into(), answer: answer.into() });
    }

    /// Whether nothing was looked at.
    pub(crate) fn is_empty(&self) -> bool {
        self.findings.is_empty() && self.answers.is_empty() && self.figures.is_empty()
    }

    /// Whether something was looked at that was not skipped.
    pub(crate) fn has_looked(&self) -> bool {
        !self.figures.is_empty() || self.findings.iter().any(|finding| finding.verdict != Verdict::Skipped)
    }

    /// Whether an expectation does not hold.
    pub(crate) fn has_failed(&self) -> bool {
        self.findings.iter().any(|finding| finding.verdict == Verdict::Fails)
    }

    /// Makes what fails skipped: to be called for what was found without a slice.
    pub(crate) fn excuse(&mut self) {
        for finding in self.findings.iter_mut().filter(|finding| finding.verdict == Verdict::Fails) {
            finding.verdict = Verdict::Skipped;
            finding.saw = format!("it does not hold here without a slice either: {}", finding.saw);
        }
    }

    /// Makes what fails skipped where it was skipped in `bare`.
    pub(crate) fn excuse_like(&mut self, bare: &Findings) {
        for finding in self.findings.iter_mut().filter(|finding| finding.verdict == Verdict::Fails) {
            let is_it = |other: &&Finding| other.verdict == Verdict::Skipped && other.what == finding.what;
            if let Some(skipped) = bare.findings.iter().find(is_it) {
                *finding = skipped.clone();
            }
        }
    }

    /// Compares with what was found in `bare`. Adds a finding for each answer that differs from the answer there, or is in
    /// only one of the two, or one finding that all agree. What could be looked at there must not be skipped.
    pub(crate) fn compare(&mut self, bare: &Findings) {
        for finding in self.findings.iter_mut().filter(|finding| finding.verdict == Verdict::Skipped) {
            let is_it = |other: &Finding| other.verdict == Verdict::Skipped && other.what == finding.what;
            if !bare.findings.iter().any(is_it) {
                finding.verdict = Verdict::Fails;
                finding.saw = format!("skipped, as it was not without the shim: {}", finding.saw);
            }
        }
        const NONE: &str = "no answer";
        let of = |findings: &'_ [Answer], asked: &str| {
            findings.iter().find(|other| other.asked == asked).map_or(NONE.to_owned(), |other| other.answer.clone())
        };
        let own = self.answers.iter().map(|answer| &answer.asked);
        let missing = bare.answers.iter().map(|answer| &answer.asked).filter(|asked| {
            let is_it = |answer: &Answer| answer.asked == **asked;
            !self.answers.iter().any(is_it)
        });
        let differ: Vec<Finding> = own
            .chain(missing)
            .filter_map(|asked| {
                let (with, without) = (of(&self.answers, asked), of(&bare.answers, asked));
                (with != without).then(|| Finding {
                    what: format!("{asked}: the same answer as without the shim"),
                    verdict: Verdict::Fails,
                    saw: format!("{with} instead of {without}"),
                })
            })
            .collect();
        if differ.is_empty() && !self.answers.is_empty() {
            self.expect(format!("{} answers the same as without the shim", self.answers.len()), true, "");
        }
        self.findings.extend(differ);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_differs_is_a_failure() {
        let (mut bare, mut shim) = (Findings::default(), Findings::default());
        bare.answer("free of null", "CUDA_SUCCESS");
        shim.answer("free of null", "CUDA_ERROR_INVALID_VALUE");
        shim.compare(&bare);
        assert!(shim.has_failed());
        assert!(shim.findings[0].saw.contains("INVALID_VALUE instead of CUDA_SUCCESS"));
    }

    #[test]
    fn the_same_answers_hold() {
        let mut bare = Findings::default();
        bare.answer("free of null", "CUDA_SUCCESS");
        let mut shim = bare.clone();
        shim.compare(&bare);
        assert!(!shim.has_failed());
        assert_eq!(shim.findings.len(), 1);
    }

    #[test]
    fn an_answer_that_only_one_way_gives_is_a_failure() {
        let mut bare = Findings::default();
        bare.answer("free of null", "CUDA_SUCCESS");
        for (mut with, bare) in [(Findings::default(), bare.clone()), (bare, Findings::default())] {
            with.compare(&bare);
            assert!(with.has_failed() && with.findings[0].saw.contains("no answer"), "{with:?}");
        }
    }

    #[test]
    fn what_is_skipped_only_with_the_shim_is_a_failure() {
        let (mut bare, mut with) = (Findings::default(), Findings::default());
        bare.skip("multicast objects", "the device has none");
        with.skip("multicast objects", "the device has none");
        with.compare(&bare);
        assert!(!with.has_failed());
        with.skip("NVML agrees with CUDA", "NVML cannot be loaded");
        with.compare(&bare);
        assert!(with.has_failed() && with.findings[1].saw.contains("cannot be loaded"), "{with:?}");
    }

    #[test]
    fn what_is_skipped_does_not_fail() {
        let mut findings = Findings::default();
        assert!(findings.is_empty());
        findings.skip("managed memory", "the device has none");
        assert!(!findings.has_failed() && !findings.is_empty() && !findings.has_looked());
    }
}
