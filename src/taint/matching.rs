//! Finds the toleration of a pod for each taint of its node.
//!
//! The rules are the API's (`k8s.io/api/core/v1`, `Toleration.ToleratesTaint`, with the numeric
//! operators of KEP-5471 enabled). The scheduler uses the same rules, and a pod must not be evicted by
//! other rules than it was scheduled by. Times do not matter here; callers handle the duration of a
//! toleration.

use crate::model::{Effect, Node, Operator, Pod, Taint, Toleration};

/// Whether `toleration` matches `taint`, for however long.
///
/// An effect or operator that this version does not know matches nothing.
pub fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let effect = match toleration.effect {
        None => true,
        Some(Effect::Unknown) => false,
        Some(effect) => effect == taint.effect,
    };
    effect
        && (toleration.key.is_empty() || toleration.key == taint.key)
        && match toleration.operator {
            Operator::Exists => true,
            Operator::Equal => toleration.value == taint.value,
            Operator::Lt => numbers(taint, toleration).is_some_and(|(taint, own)| taint < own),
            Operator::Gt => numbers(taint, toleration).is_some_and(|(taint, own)| taint > own),
            Operator::Unknown => false,
        }
}

/// The taints with effect NoExecute, in spec order.
pub fn no_execute(taints: &[Taint]) -> impl Iterator<Item = &Taint> {
    taints.iter().filter(|taint| taint.effect == Effect::NoExecute)
}

/// A toleration with its index in the pod's spec.
pub(super) type Used<'a> = (usize, &'a Toleration);

/// Each NoExecute taint of `node` with the toleration of `pod` that counts: the first match in spec
/// order, whatever the later ones are.
pub(super) fn used<'a>(
    pod: &'a Pod,
    node: &'a Node,
) -> impl Iterator<Item = (&'a Taint, Option<Used<'a>>)> {
    no_execute(&node.taints).map(|taint| {
        let found = pod.tolerations.iter().find(|toleration| tolerates(toleration, taint));
        (taint, found.map(|toleration| (toleration.index as usize, toleration)))
    })
}

fn numbers(taint: &Taint, toleration: &Toleration) -> Option<(i64, i64)> {
    Some((integer(&taint.value)?, integer(&toleration.value)?))
}

/// Parses a number in its canonical form, as formatting it returns it. So `+1`, `01`, `-0`, `1.0`, ` 1`
/// and `-` are not numbers.
fn integer(text: &str) -> Option<i64> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let canonical = text == "0" || matches!(digits.as_bytes(), [b'1'..=b'9', ..]);
    if canonical { text.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::build::{comparing, equal, exists, node, pod, taint};

    fn compares(operator: Operator, toleration: &str, tainted: &str) -> bool {
        tolerates(&comparing("k", operator, toleration), &taint("k", tainted))
    }

    #[test]
    fn exists_matches_its_key_with_and_without_a_value() {
        assert!(tolerates(&exists("k"), &taint("k", "v")));
        assert!(tolerates(&exists("k"), &taint("k", "")));
        assert!(!tolerates(&exists("k"), &taint("other", "v")));
    }

    #[test]
    fn exists_without_a_key_matches_every_taint() {
        assert!(tolerates(&exists(""), &taint("k", "v")));
        assert!(tolerates(&exists(""), &taint("other", "")));
    }

    #[test]
    fn equal_matches_the_same_value_only() {
        assert!(tolerates(&equal("k", "v"), &taint("k", "v")));
        assert!(tolerates(&equal("k", ""), &taint("k", "")));
        assert!(!tolerates(&equal("k", "v"), &taint("k", "w")));
        assert!(!tolerates(&equal("k", "v"), &taint("other", "v")));
    }

    #[test]
    fn a_toleration_is_for_its_effect_or_for_all() {
        let noted = taint("k", "v");
        assert!(tolerates(&exists("k").of_effect(None), &noted));
        for effect in [Effect::NoSchedule, Effect::PreferNoSchedule] {
            let other = exists("k").of_effect(Some(effect));
            assert!(!tolerates(&other, &noted));
            assert!(tolerates(&other, &taint("k", "v").with(effect)));
        }
    }

    #[test]
    fn what_is_not_known_matches_nothing() {
        assert!(!compares(Operator::Unknown, "v", "v"));
        let strange = exists("k").of_effect(Some(Effect::Unknown));
        assert!(!tolerates(&strange, &taint("k", "v")));
        assert!(!tolerates(&strange, &taint("k", "v").with(Effect::Unknown)));
    }

    #[test]
    fn gt_matches_a_taint_with_a_greater_number() {
        for (toleration, tainted, expected) in [
            ("950", "800", false),
            ("750", "950", true),
            ("950", "950", false),
            ("950", "high", false),
            ("-100", "-200", false),
            ("9223372036854775806", "100", false),
            ("100", "200", true),
            ("200", "100", false),
            ("100", "100", false),
            ("-100", "-50", true),
            ("-50", "-100", false),
            ("0", "1", true),
            ("9223372036854775806", "9223372036854775807", true),
            ("0", "9223372036854775807", true),
            ("0", "0", false),
        ] {
            let found = compares(Operator::Gt, toleration, tainted);
            assert_eq!(found, expected, "Gt {toleration} of taint {tainted}");
        }
    }

    #[test]
    fn lt_matches_a_taint_with_a_smaller_number() {
        for (toleration, tainted, expected) in [
            ("800", "950", false),
            ("950", "800", true),
            ("200", "100", true),
            ("100", "200", false),
            ("100", "100", false),
            ("-50", "-100", true),
            ("-100", "-50", false),
            ("0", "-1", true),
            ("0", "-9223372036854775808", true),
            ("0", "0", false),
        ] {
            let found = compares(Operator::Lt, toleration, tainted);
            assert_eq!(found, expected, "Lt {toleration} of taint {tainted}");
        }
    }

    #[test]
    fn a_number_that_is_not_canonical_matches_nothing_on_either_side() {
        for text in [
            "",
            "abc",
            "xyz",
            "0100",
            "0200",
            "+100",
            "+200",
            "100.5",
            "-",
            "-0",
            "00",
            " 200 ",
            "1e3",
            "1_000",
            "--1",
            "٣",
            "9223372036854775808",
            "-9223372036854775809",
        ] {
            for other in ["-5", "0", "5"] {
                for operator in [Operator::Lt, Operator::Gt] {
                    assert!(!compares(operator, text, other), "toleration {text:?}");
                    assert!(!compares(operator, other, text), "taint {text:?}");
                }
            }
        }
    }

    #[test]
    fn equal_and_exists_do_not_compare_numbers() {
        assert!(!compares(Operator::Equal, "100", "200"));
        assert!(!compares(Operator::Equal, "100", "0100"));
        assert!(compares(Operator::Exists, "100", "high"));
    }

    #[test]
    fn only_no_execute_taints_remove_pods() {
        let taints = [
            taint("a", "1").with(Effect::NoSchedule),
            taint("b", "2"),
            taint("c", "3").with(Effect::PreferNoSchedule),
            taint("d", "4").with(Effect::Unknown),
        ];
        let keys: Vec<_> = no_execute(&taints).map(|taint| &*taint.key).collect();
        assert_eq!(keys, ["b"]);
    }

    #[test]
    fn the_first_match_in_spec_order_is_used_and_may_repeat() {
        let pod = pod("a")
            .tolerating(exists("elsewhere"))
            .tolerating(exists("").lasting(300))
            .tolerating(exists("b"));
        let node = node("n1").tainted(taint("a", "")).tainted(taint("b", ""));
        let indices: Vec<_> = used(&pod, &node)
            .map(|(taint, found)| (&*taint.key, found.map(|(index, _)| index)))
            .collect();
        assert_eq!(indices, [("a", Some(1)), ("b", Some(1))]);
    }
}
