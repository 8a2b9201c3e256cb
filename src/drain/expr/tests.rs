//! The case tables of draino, the errors, and the laws of reading and writing.

use proptest::prelude::*;

use super::*;

fn labels(pairs: &[(&str, &str)]) -> Labels {
    pairs.iter().map(|(key, value)| (*key, *value)).collect()
}

fn admits(text: &str, pairs: &[(&str, &str)]) -> bool {
    LabelExpr::parse(text).unwrap().admits(&labels(pairs))
}

#[test]
fn expressions_of_draino_select_the_same_nodes() {
    let pr75: &[_] = &[("region", "us-west-2"), ("app", "nginx"), ("type", "sup")];
    let example = |region| {
        format!(
            "(metadata.labels.region == '{region}' && metadata.labels.app == 'nginx') || \
             (metadata.labels.region == 'us-west-2' && metadata.labels.foo == 'bar') || \
             (metadata.labels.type == 'toolbox')"
        )
    };
    let very: &[_] = &[("cool", "very")];
    let nope: &[_] = &[("cool", "nope")];
    let both: &[_] = &[("cool", "very"), ("lame", "nope")];
    for (name, pairs, text, expected) in [
        ("SingleMatchingLabel", very, "metadata.labels.cool == 'very'", true),
        (
            "MatchesAllLabels",
            both,
            "metadata.labels.cool == 'very' && metadata.labels.lame == 'nope'",
            true,
        ),
        ("DoesntMatchWrongLabel", nope, "metadata.labels.cool == 'very'", false),
        ("PR75Example1", pr75, &example("us-west-2"), true),
        ("PR75Example2", pr75, &example("us-west-1"), false),
        (
            "MatchesSomeLabels",
            very,
            "metadata.labels.cool == 'lame' || metadata.labels.cool == 'very'",
            true,
        ),
        (
            "MatchesNoLabels",
            nope,
            "metadata.labels.cool == 'lame' || metadata.labels.cool == 'very'",
            false,
        ),
        ("InOperatorMatches", very, "metadata.labels.cool in ['very', 'lame']", true),
        ("InOperatorFails", very, "metadata.labels.cool in ['lame', 'nope']", false),
        ("NoNodeLabels", &[], "metadata.labels.cool == 'very'", false),
        ("NoFilterLabels", very, "", true),
        ("has label, in", very, "'cool' in metadata.labels", true),
        ("has label, accessor", very, "metadata.labels.cool != ''", true),
        ("lacks label, accessor", &[("sup", "very")], "metadata.labels.cool != ''", false),
    ] {
        assert_eq!(admits(text, pairs), expected, "{name}");
    }
}

#[test]
fn node_label_terms_of_draino_select_the_same_nodes() {
    for (name, pairs, terms, expected) in [
        ("one", &[("cool", "very")][..], &["cool=very"][..], true),
        ("domain", &[("planetlabs.com/cool", "very")], &["planetlabs.com/cool=very"], true),
        ("two", &[("cool", "very"), ("lame", "nope")], &["cool=very", "lame=nope"], true),
        ("wrong value", &[("cool", "nope")], &["cool=very"], false),
        (
            "one of two wrong",
            &[("cool", "very"), ("lame", "somehow")],
            &["cool=very", "lame=nope"],
            false,
        ),
        ("one of two absent", &[("cool", "very")], &["cool=very", "lame=nope"], false),
        ("node without labels", &[], &["cool=very"], false),
        ("no terms", &[("cool", "very")], &[], true),
        ("any value, absent", &[("cool", "very")], &["keyWithNoValue="], false),
        ("any value, empty", &[("keyWithNoValue", "")], &["keyWithNoValue="], true),
        ("any value, some", &[("keyWithNoValue", "x")], &["keyWithNoValue="], true),
    ] {
        let read = LabelExpr::from_terms(terms).unwrap();
        assert_eq!(read.admits(&labels(pairs)), expected, "{name}");
    }
}

#[test]
fn node_label_terms_become_an_expression() {
    let written = |terms: &[&str]| LabelExpr::from_terms(terms).unwrap().to_string();
    assert_eq!(
        written(&["foo=bar", "baz=qux"]),
        "metadata.labels['baz'] == 'qux' && metadata.labels['foo'] == 'bar'"
    );
    assert_eq!(written(&["foo=bar", "foo=bar"]), "metadata.labels['foo'] == 'bar'");
    assert_eq!(written(&["foo="]), "'foo' in metadata.labels");
    assert_eq!(written(&["foo=a=b"]), "metadata.labels['foo'] == 'a=b'");
    assert_eq!(written(&[]), "");
}

#[test]
fn node_label_terms_that_no_node_can_have_are_errors() {
    for (terms, column, cause, remedy) in [
        (&["foo=bar", "foo=baz"][..], 5, "foo must also be \"bar\"", "||"),
        (&["foo=", "foo=baz"], 5, "foo must also be \"\"", "||"),
        (&["foo"], 4, "the = is missing", "foo= for any value"),
        (&["=bar"], 1, "key is missing", "KEY="),
        (&[""], 1, "the = is missing", "any value"),
    ] {
        let error = LabelExpr::from_terms(terms).unwrap_err();
        assert_eq!(error.column, column, "{error}");
        assert!(error.cause.contains(cause) && error.remedy.contains(remedy), "{error}");
    }
}

#[test]
fn every_operator_says_what_it_says() {
    let node = &[("a", "one"), ("b.c/d", "two"), ("e", "")];
    for (text, expected) in [
        ("metadata.labels['b.c/d'] == \"two\"", true),
        ("metadata.labels.a == metadata.labels['a']", true),
        ("'one' == metadata.labels.a", true),
        ("metadata.labels.missing == ''", true),
        ("'e' in metadata.labels", true),
        ("'missing' in metadata.labels", false),
        ("'missing' not in metadata.labels", true),
        ("metadata.labels.a not in ['one']", false),
        ("metadata.labels.a in []", false),
        ("metadata.labels.a matches '^o.e$'", true),
        ("metadata.labels.a matches 'n'", true),
        ("metadata.labels.a matches '\\\\d'", false),
        ("metadata.labels.a contains 'n'", true),
        ("metadata.labels.a startsWith 'on'", true),
        ("metadata.labels.a endsWith 'on'", false),
        ("true", true),
        ("false or true", true),
        ("true and false", false),
        ("true || false && false", true),
        ("(true || false) && false", false),
        ("!(metadata.labels.a == 'two')", true),
        ("!!true", true),
        ("not (metadata.labels.a matches 'x') and not false", true),
        ("'it\\'s' == \"it's\"", true),
        ("'a' == 'a' && (('b' == 'b'))", true),
    ] {
        assert_eq!(admits(text, node), expected, "{text}");
    }
}

#[test]
fn a_label_may_be_written_in_every_way_of_the_language() {
    let node = &[("node-role", "b"), ("pool", "gpu")];
    for way in [
        "metadata['labels']['pool']",
        "metadata[\"labels\"].pool",
        "metadata['labels'].pool",
        "metadata.labels[\"pool\"]",
        "metadata . labels . pool",
        "metadata['labels']['\\x70ool']",
        "metadata['labels']['\\u0070ool']",
        "(metadata).labels.pool",
        "(metadata.labels)['pool']",
        "((metadata['labels'])['pool'])",
    ] {
        assert!(admits(&format!("{way} == 'gpu'"), node), "{way}");
        assert!(!admits(&format!("{way} == 'cpu'"), node), "{way}");
        let read = LabelExpr::parse(&format!("{way} in ['gpu']")).unwrap();
        assert_eq!(read.to_string(), "metadata.labels['pool'] in ['gpu']");
    }
    assert!(admits("metadata['labels']['node-role'] in ['a','b']", node));
    assert!(admits("'node-role' in metadata['labels']", node));
    assert!(!admits("'none' in (metadata)['labels']", node));
}

#[test]
fn truths_can_be_compared_and_chosen_between() {
    let node = &[("a", "one")];
    for (text, expected) in [
        ("('a' in metadata.labels) == true", true),
        ("('a' in metadata.labels) == false", false),
        ("false != ('a' in metadata.labels)", true),
        ("('a' in metadata.labels) == ('b' in metadata.labels)", false),
        ("'a' in metadata.labels ? metadata.labels.a == 'one' : true", true),
        ("'b' in metadata.labels ? true : metadata.labels.a == 'two'", false),
        ("false ? true : false ? false : true", true),
        ("!(true ? false : true) && (true == true)", true),
    ] {
        assert_eq!(admits(text, node), expected, "{text}");
        let read = LabelExpr::parse(text).unwrap();
        assert_eq!(LabelExpr::parse(&read.to_string()).as_ref(), Ok(&read), "{read}");
    }
    let deep = format!("{}true{}", "(".repeat(30), " ? true : false) == true".repeat(30));
    assert!(admits(&deep, node));
}

#[test]
fn what_an_expression_asks_more_than_another_is_known() {
    let expr = |text: &str| LabelExpr::parse(text).unwrap();
    let (a, b) = ("metadata.labels.a == 'x'", "'b' in metadata.labels");
    let both = format!("{a} && {b}");
    for (narrow, wide, implied) in [
        (a, "", true),
        ("", a, false),
        ("", "true", true),
        (a, a, true),
        (&both, a, true),
        (&both, &both, true),
        (a, &both, false),
        (a, b, false),
    ] {
        assert_eq!(expr(narrow).implies(&expr(wide)), implied, "{narrow:?} {wide:?}");
    }
}

#[test]
fn an_expression_that_is_the_same_for_all_nodes_is_found_out() {
    for (text, always) in [
        ("", Some(true)),
        ("true", Some(true)),
        ("false", Some(false)),
        ("!(true && ('a' == 'b'))", Some(true)),
        ("metadata.labels.a == 'x'", None),
        ("metadata.labels.a == 'x' && metadata.labels.a == 'y'", Some(false)),
        ("metadata.labels.a == 'x' && metadata.labels.b == 'y'", None),
        ("metadata.labels.a != 'x' || metadata.labels.a != 'y'", Some(true)),
        ("metadata.labels.a in []", Some(false)),
        ("metadata.labels.a == 'no value of a label'", Some(false)),
        ("'no key' in metadata.labels", Some(false)),
        ("'a' in metadata.labels && metadata.labels.a == ''", None),
        ("'a' in metadata.labels || 'a' not in metadata.labels", Some(true)),
        ("metadata.labels.a == metadata.labels.b", None),
        ("metadata.labels.a == metadata.labels.a", Some(true)),
        ("metadata.labels.a startsWith 'x' && metadata.labels.a endsWith 'y'", None),
        ("metadata.labels.a matches '^x+y$'", None),
        ("false && metadata.labels.a matches '^x+y$'", Some(false)),
    ] {
        assert_eq!(LabelExpr::parse(text).unwrap().always(&[]), always, "{text}");
    }
    let pinned = [(Arc::from("a"), Arc::from("x"))];
    let of = |text: &str| LabelExpr::parse(text).unwrap().always(&pinned);
    assert_eq!(of("metadata.labels.a == 'y'"), Some(false));
    assert_eq!(of("metadata.labels.a == 'x'"), Some(true));
    assert_eq!(of("metadata.labels.b == 'y'"), None);
    let many: Vec<_> = (0..40).map(|n| format!("metadata.labels.k{n} == 'x'")).collect();
    assert_eq!(LabelExpr::parse(&many.join(" && ")).unwrap().always(&[]), None);
}

#[test]
fn the_keys_of_an_expression_are_known() {
    let read = LabelExpr::parse(
        "metadata.labels.b == metadata.labels['c d'] && !('e' in metadata.labels || 'a' == 'b')",
    );
    assert_eq!(read.unwrap().keys().into_iter().collect::<Vec<_>>(), ["b", "c d", "e"]);
}

#[test]
fn a_negated_match_rejects_what_matches() {
    let text = "metadata.labels['pool'] == 'a' and metadata.labels.zone == 'b' and \
                not (metadata.labels.name matches '^canary-')";
    let node = |name| [("pool", "a"), ("zone", "b"), ("name", name)];
    assert!(!admits(text, &node("canary-1")));
    assert!(admits(text, &node("main-1")));
}

#[test]
fn a_mistake_is_named_with_its_place_and_what_to_write() {
    for (text, column, cause, remedy) in [
        ("metadata.labels.a", 1, "a string is not a boolean", "== 'VALUE'"),
        ("metadata.labels", 1, "metadata.labels is not a boolean", "== 'VALUE'"),
        ("['a']", 1, "a list is not", "== 'VALUE'"),
        ("true && metadata.labels.a", 9, "a string is not", "== 'VALUE'"),
        ("metadata.labels.a || true", 1, "a string is not", "== 'VALUE'"),
        ("metadata.labels.a = 'b'", 19, "= is not an operator", "write =="),
        ("metadata.labels.a == b", 22, "unknown word \"b\"", "in quotes"),
        ("metadata.labels.a == 1", 22, "unknown word \"1\"", "in quotes"),
        ("metadata.labels.a ==", 21, "the end where a label", "in quotes"),
        ("metadata.labels.a == 'b", 22, "not closed", "close it with '"),
        ("metadata.labels.a == 'b\\d'", 24, "\\d is not a valid escape", "\\\\"),
        ("metadata.labels.a == 'b' == 'c'", 1, "a boolean where a string", "in quotes"),
        ("metadata.labels.a & true", 19, "unexpected '&'", "&&"),
        ("metadata.labels.a-b == 'c'", 18, "cannot follow", "metadata.labels['example.com/key']"),
        ("metadata.labels.a.b == 'c'", 18, "cannot follow", "metadata.labels['example.com/key']"),
        ("metadata.labels[a] == 'c'", 17, "must be a quoted string", "metadata.labels['KEY']"),
        ("metadata.labels['a' == 'c'", 21, "\"]\" was expected", "write ]"),
        ("metadata.labels. == 'c'", 18, "label key is missing", "metadata.labels['KEY']"),
        ("metadata.name == 'n1'", 10, "only the labels", "metadata.labels"),
        ("spec.x == 'n1'", 1, "unknown word \"spec\"", "metadata.labels"),
        ("(true", 6, "\")\" was expected", "write )"),
        ("true)", 5, "\")\" cannot follow", "remove it"),
        ("true true", 6, "\"true\" cannot follow", "&&"),
        ("not metadata.labels.a == 'b'", 5, "a string cannot be negated", "parentheses"),
        ("metadata.labels.a not 'b'", 23, "not between two values", "not in"),
        ("'a' in 'abc'", 8, "a string where a list was expected", "['a', 'b']"),
        ("'a' in ['b' 'c']", 13, "\"]\" was expected", "write ]"),
        ("'a' in [b]", 9, "only contain quoted strings", "['a', 'b']"),
        ("'a' matches metadata.labels.b", 13, "must be a quoted string", "matches '^gpu-'"),
        ("'a' matches '('", 13, "unclosed group", "fix it"),
        ("'a' matches 'a{1000}{1000}{1000}'", 13, "invalid regular expression", "fix it"),
        ("'é' == 'a' % 'b'", 12, "unexpected '%'", "in quotes"),
    ] {
        let error = LabelExpr::parse(text).unwrap_err();
        assert_eq!(error.column, column, "{error}");
        assert!(error.cause.contains(cause), "{error}");
        assert!(error.remedy.contains(remedy), "{error}");
    }
}

#[test]
fn depth_is_bounded_and_length_is_not() {
    for open in ["(", "!", "not "] {
        let error = LabelExpr::parse(&open.repeat(100_000)).unwrap_err();
        assert!(error.cause.contains("too many nested parentheses"), "{}", error.cause);
    }
    let long = vec!["'a' in metadata.labels"; 20_000].join(" || ");
    assert!(admits(&long, &[("a", "")]));
    let deep = format!("{}true{}", "(".repeat(60), ")".repeat(60));
    assert!(admits(&deep, &[]));
}

fn texts() -> impl Strategy<Value = Text> {
    prop_oneof![
        "[a-c./\\-]{0,5}".prop_map(|key| Text::Label(key.as_str().into())),
        "(?s:.){0,10}".prop_map(|text| Text::Literal(text.as_str().into())),
    ]
}

fn terms() -> impl Strategy<Value = Term> {
    let relation = prop::sample::select(vec![
        Relation::Equal,
        Relation::Differs,
        Relation::Contains,
        Relation::StartsWith,
        Relation::EndsWith,
    ]);
    let list = prop::collection::vec("[a-c']{0,3}".prop_map(|text| Arc::from(text.as_str())), 0..3);
    let leaf = prop_oneof![
        any::<bool>().prop_map(Term::Const),
        (texts(), relation, texts()).prop_map(|(left, how, right)| Term::Compare(left, how, right)),
        (texts(), list).prop_map(|(text, list)| Term::OneOf(text, list)),
        texts().prop_map(Term::Has),
        (texts(), "[a-c.*\\n']{1,5}").prop_filter_map("no pattern", |(text, pattern)| Some(
            Term::Matches(text, Pattern(Regex::new(&pattern).ok()?))
        )),
    ];
    leaf.prop_recursive(4, 32, 4, |inner| {
        let several = prop::collection::vec(inner.clone(), 2..4);
        prop_oneof![
            inner.prop_map(|term| Term::Not(Box::new(term))),
            several.clone().prop_map(Term::All),
            several.prop_map(Term::Any),
        ]
    })
}

proptest! {
    #[test]
    fn what_is_written_reads_the_same(term in terms()) {
        let expr = LabelExpr(Some(term));
        prop_assert_eq!(LabelExpr::parse(&expr.to_string()), Ok(expr));
    }

    #[test]
    fn no_text_panics(text in ".{0,60}") {
        let _ = LabelExpr::parse(&text);
    }

    #[test]
    fn no_row_of_words_panics(words in prop::collection::vec(prop::sample::select(vec![
        "metadata", ".", "labels", "[", "]", "'a'", "(", ")", "!", "not", "in", "==", "matches",
        "&&", "or", ",", "true", "é", "\\", "'", "=",
    ]), 0..20)) {
        let text = words.join(if words.len() % 2 == 0 { " " } else { "" });
        if let Ok(expr) = LabelExpr::parse(&text) {
            let _ = expr.admits(&labels(&[("a", "b")]));
            prop_assert_eq!(LabelExpr::parse(&expr.to_string()), Ok(expr));
        }
    }
}
