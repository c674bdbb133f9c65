//! KAI's words in labels and annotations, of pods and of what makes them: how a group of pods stands among others, and
//! where its pods may be. Volcano and we have words for some of that, too.
//!
//! The levels are those of our own topology. So the name of KAI's topology (`kai.scheduler/topology`) says nothing here.

use std::collections::BTreeMap;

use aliquot_scheduler_core::PriorityClass;

use crate::queue::milliseconds;

/// The label that names the priority class of a group.
const CLASS: &str = "priorityClassName";
/// The label that says whether pods may be evicted for others: `true` or `false`. It goes before KAI's.
const PREEMPTIBLE: &str = "aliquot.dev/preemptible";
const PREEMPTIBILITY: &str = "kai.scheduler/preemptibility";
/// Volcano's word for the same, an annotation or else a label: `true` or `false`.
const PREEMPTABLE: &str = "volcano.sh/preemptable";
/// What Volcano reads as `true`.
const TRUE: [&str; 6] = ["1", "t", "T", "true", "TRUE", "True"];
const REQUIRED_LEVEL: &str = "kai.scheduler/topology-required-placement";
const PREFERRED_LEVEL: &str = "kai.scheduler/topology-preferred-placement";
const PREEMPTION_DELAY: &str = "kai.scheduler/preemption-delay";
const STALENESS_GRACE: &str = "kai.scheduler/staleness-grace-period";

type Texts = BTreeMap<String, String>;

/// Which pods of a group may be evicted for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Preemptibility {
    All,
    None,
    /// Those beyond the number that start together.
    BeyondMinimum,
}

impl Preemptibility {
    /// Which pods a word of KAI's means; `None`: it is no such word.
    pub(crate) fn named(word: &str) -> Option<Preemptibility> {
        match word {
            "preemptible" => Some(Preemptibility::All),
            "non-preemptible" => Some(Preemptibility::None),
            "semi-preemptible" => Some(Preemptibility::BeyondMinimum),
            _ => None,
        }
    }

    /// As a pod, or what makes it, says it. Like KAI, this takes an unknown word of KAI's for none. Like Volcano, it takes
    /// one of Volcano's for `false`.
    pub(crate) fn of(labels: &Texts, annotations: &Texts) -> Option<Preemptibility> {
        let if_true = |is_true: bool| if is_true { Preemptibility::All } else { Preemptibility::None };
        let own = labels.get(PREEMPTIBLE).map(|text| if_true(text == "true"));
        let of_kai = || labels.get(PREEMPTIBILITY).and_then(|word| Preemptibility::named(word));
        let of_volcano = || annotations.get(PREEMPTABLE).or_else(|| labels.get(PREEMPTABLE));
        own.or_else(of_kai).or_else(|| of_volcano().map(|text| if_true(TRUE.contains(&text.as_str()))))
    }

    /// Whether a pod of this priority may be evicted that starts by itself. `said`: what labels say of it.
    pub(crate) fn lets_one_go(said: Option<Preemptibility>, priority: i32) -> bool {
        PriorityClass::is_preemptible(priority, said.map(|of| of.lets_minimum_go(1)))
    }

    /// Whether the pods may be evicted that a group with this minimum needs.
    pub(crate) fn lets_minimum_go(self, minimum: u32) -> bool {
        match self {
            Preemptibility::All => true,
            Preemptibility::None => false,
            Preemptibility::BeyondMinimum => minimum == 0,
        }
    }
}

/// What labels and annotations say beside the queue and the preemptibility.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KaiWords {
    /// The priority class of the group.
    pub(crate) class: Option<String>,
    pub(crate) required_level: Option<String>,
    pub(crate) preferred_level: Option<String>,
    pub(crate) preemption_delay_ms: Option<u64>,
    /// `Some(None)`: for ever.
    pub(crate) staleness_grace_ms: Option<Option<u64>>,
}

impl KaiWords {
    pub(crate) const NONE: KaiWords = KaiWords {
        class: None,
        required_level: None,
        preferred_level: None,
        preemption_delay_ms: None,
        staleness_grace_ms: None,
    };

    /// The same, and what `other` says where it says nothing.
    pub(crate) fn or(self, other: &KaiWords) -> KaiWords {
        KaiWords {
            class: self.class.or_else(|| other.class.clone()),
            required_level: self.required_level.or_else(|| other.required_level.clone()),
            preferred_level: self.preferred_level.or_else(|| other.preferred_level.clone()),
            preemption_delay_ms: self.preemption_delay_ms.or(other.preemption_delay_ms),
            staleness_grace_ms: self.staleness_grace_ms.or(other.staleness_grace_ms),
        }
    }

    /// Like KAI, this takes no notice of a duration that cannot be read.
    pub(crate) fn of(labels: &Texts, annotations: &Texts) -> KaiWords {
        let of = |texts: &Texts, key: &str| texts.get(key).filter(|text| !text.is_empty()).cloned();
        let duration = |key: &str| annotations.get(key).and_then(|text| duration(text));
        KaiWords {
            class: of(labels, CLASS),
            required_level: of(annotations, REQUIRED_LEVEL),
            preferred_level: of(annotations, PREFERRED_LEVEL),
            preemption_delay_ms: duration(PREEMPTION_DELAY).flatten(),
            staleness_grace_ms: duration(STALENESS_GRACE),
        }
    }
}

/// A duration in milliseconds; `Some(None)`: it is negative.
fn duration(text: &str) -> Option<Option<u64>> {
    match text.strip_prefix('-') {
        Some(rest) => milliseconds(rest).map(|_| None),
        None => milliseconds(text).map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts<const N: usize>(texts: [(&str, &str); N]) -> Texts {
        texts.map(|(key, text)| (key.to_owned(), text.to_owned())).into()
    }

    #[test]
    fn labels_and_annotations_say_what_a_group_of_kai_says() {
        let labels = texts([("priorityClassName", "inference"), ("app", "x")]);
        let annotations = texts([
            ("kai.scheduler/topology", "t"),
            ("kai.scheduler/topology-required-placement", "zone"),
            ("kai.scheduler/topology-preferred-placement", "rack"),
            ("kai.scheduler/preemption-delay", "90s"),
            ("kai.scheduler/staleness-grace-period", "-1s"),
        ]);
        let expected = KaiWords {
            class: Some("inference".into()),
            required_level: Some("zone".into()),
            preferred_level: Some("rack".into()),
            preemption_delay_ms: Some(90_000),
            staleness_grace_ms: Some(None),
        };
        assert_eq!(KaiWords::of(&labels, &annotations), expected);
        let nothing = texts([
            ("kai.scheduler/topology-required-placement", ""),
            ("kai.scheduler/preemption-delay", "soon"),
            ("kai.scheduler/staleness-grace-period", "-"),
        ]);
        assert_eq!(KaiWords::of(&texts([("priorityClassName", "")]), &nothing), KaiWords::NONE);
        let negative =
            texts([("kai.scheduler/preemption-delay", "-5s"), ("kai.scheduler/staleness-grace-period", "5m")]);
        let expected = KaiWords { staleness_grace_ms: Some(Some(300_000)), ..KaiWords::NONE };
        assert_eq!(KaiWords::of(&Texts::new(), &negative), expected);
    }

    #[test]
    fn a_word_for_preemptibility_that_kai_does_not_know_is_none() {
        let of = |word: &str| Preemptibility::of(&texts([(PREEMPTIBILITY, word)]), &Texts::new());
        let words = ["preemptible", "non-preemptible", "semi-preemptible", "", "Preemptible"];
        let expected =
            [Some(Preemptibility::All), Some(Preemptibility::None), Some(Preemptibility::BeyondMinimum), None, None];
        assert_eq!(words.map(of), expected);
        let minimum_goes = |of: Preemptibility| [0, 1].map(|minimum| of.lets_minimum_go(minimum));
        assert_eq!(minimum_goes(Preemptibility::All), [true, true]);
        assert_eq!(minimum_goes(Preemptibility::None), [false, false]);
        assert_eq!(minimum_goes(Preemptibility::BeyondMinimum), [true, false]);
    }

    #[test]
    fn volcano_s_word_counts_where_no_other_does() {
        let word = |text: &str| texts([(PREEMPTABLE, text)]);
        let (all, none) = (Some(Preemptibility::All), Some(Preemptibility::None));
        for (text, expected) in [("true", all), ("1", all), ("false", none), ("maybe", none), ("", none)] {
            assert_eq!(Preemptibility::of(&Texts::new(), &word(text)), expected, "{text:?}");
            assert_eq!(Preemptibility::of(&word(text), &Texts::new()), expected, "{text:?}");
        }
        assert_eq!(Preemptibility::of(&word("true"), &word("false")), none, "the annotation goes first");
        for (key, text) in [(PREEMPTIBLE, "true"), (PREEMPTIBILITY, "preemptible")] {
            assert_eq!(Preemptibility::of(&texts([(key, text)]), &word("false")), all, "{key}");
        }
    }
}
