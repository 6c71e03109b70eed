//! Tests of grammars and of matching.

use proptest::prelude::*;
use regex::Regex;
use schema::pattern::Budget;

use super::{Grammar, MismatchError};

fn grammar(text: &str) -> Grammar {
    Grammar::read(text, &mut Budget::default()).unwrap_or_else(|fault| panic!("{fault} in {text}"))
}

/// Checks that the grammar matches all texts of `taken` and none of `refused`.
fn takes(text: &str, taken: &[&str], refused: &[&str]) {
    let grammar = grammar(text);
    for input in taken {
        assert_eq!(grammar.check(input), Ok(()), "{input:?} is of {text}");
    }
    for input in refused {
        assert!(grammar.check(input).is_err(), "{input:?} is not of {text}");
    }
}

const ARITHMETIC: &str = r#"
start: expr
expr: term (SP ADD SP term)* -> add
    | term
term: factor (SP MUL SP factor)* -> mul
    | factor
factor: INT
SP: " "
ADD: "+"
MUL: "*"
%import common.INT
"#;

#[test]
fn an_input_is_of_a_grammar_or_not() {
    takes(ARITHMETIC, &["4", "4 + 4", "12 * 3 + 7"], &["", "4+4", "4 +", "4 + + 4", "x", "4 + 4 "]);
    let patch = r#"
        // A part of the grammar of patches.
        start: begin hunk+ end
        begin: "*** Begin" LF
        end: "*** End" LF?
        hunk: "*** Add: " /(.+)/ LF ("+" /(.*)/ LF)+
        %import common.LF
    "#;
    takes(
        patch,
        &["*** Begin\n*** Add: a b\n+\n+x\n*** End"],
        &["*** Begin\n*** End", "*** Begin\n*** Add: a\n*** End"],
    );
    let json = r#"
        ?start: value
        ?value: object | array | ESCAPED_STRING | SIGNED_NUMBER | "true" | "false" | "null"
        array: "[" [value ("," value)*] "]"
        object: "{" [pair ("," pair)*] "}"
        pair: ESCAPED_STRING ":" value
        %import common (ESCAPED_STRING, SIGNED_NUMBER)
        %import common.WS -> SPACE
        %ignore SPACE
    "#;
    let taken = [" [1, -2.5e3 ,{\"a\\\"b\" : [ ]}]\n", "null", "\"\""];
    takes(json, &taken, &["[1,]", "{a: 1}", "\"a\"b\"", "nul l", ""]);
}

#[test]
fn what_makes_a_grammar_hard_changes_nothing() {
    // Recursion at either end and in the middle, rules that may be empty, and rules that refer to themselves.
    takes("start: \"(\" start \")\" start |", &["", "()", "(()())()"], &["(", ")(", "(()"]);
    takes("start: start \"a\" | \"a\"", &["a", "aaaa"], &["", "ab"]);
    takes("start: \"a\" start | \"a\"", &["a", "aaaa"], &["", "ab"]);
    takes("start: start | b? start? b?\nb: c | \"x\"\nc: start", &["", "x", "xxx"], &["y"]);
    takes("start: a b c\na: \"a\"*\nb: a a\nc: b \"c\"?", &["", "aaac"], &["ca"]);
    // Every match length of a terminal counts, not only the longest.
    takes("start: /[a-z]+/ \"x\"", &["ax", "xx", "axbx"], &["x", "ab"]);
    takes("start: WORD+ /[0-9]?/\nWORD: \"ab\" | \"b\"i~2..3", &["ab", "bBb", "abbbab7"], &["b", "7", "a", "abb"]);
}

#[test]
fn flags_escapes_ranges_and_ends_of_lines_mean_what_they_mean_in_lark() {
    takes("start: \"A\\x42\\u0043\"i \"\\n\\\"\\d\"", &["abc\n\"\\d"], &["abc\n\"d"]);
    takes("start: \"a\"..\"c\"~2", &["ab", "cc"], &["a", "ad", "abc"]);
    takes("start: /a.b/s /c d # e/x", &["a\nbcd"], &["axbc d", "a\nb c d"]);
    takes("start: /\\/[^\\/]+/ \"/\"", &["/ab/"], &["//"]);
    takes("start.2: (\"a\"\n  \"b\") # a comment\n  | \"c\" -> c\n\n!other: \"d\"", &["ab", "c"], &["d"]);
    takes("start: /(?m)^b$/ \"\\n\" /(?m)^c$/", &["b\nc"], &["bc"]);
    takes("start: \"é\" /./", &["é€"], &["e€", "é"]);
}

#[test]
fn a_misfit_says_where_and_what_was_expected() {
    let misfit = grammar(ARITHMETIC).check("4 + x").unwrap_err();
    assert_eq!(misfit.to_string(), "the input does not match the grammar at line 1, column 5: expected INT");
    let text = "start: \"a\" NL (\"b\" | /c+/)\nNL: \"\\n\"";
    let MismatchError::Text { line, column, expected } = grammar(text).check("a\n€").unwrap_err() else {
        panic!("it is short")
    };
    assert_eq!((line, column), (2, 1));
    assert_eq!(expected, ["\"b\"", "/c+/"]);
    let over = grammar("start: \"a\"").check("ab").unwrap_err();
    assert!(over.to_string().ends_with("column 2: nothing may follow there"), "{over}");
}

#[test]
fn what_is_not_understood_is_refused_with_its_line() {
    let table = [
        ("", 1, "no rule start"),
        ("other: \"a\"", 1, "no rule start"),
        ("start: \"a", 1, "does not end on its line"),
        ("start: a\n\nb: \"x\"", 1, "no rule a"),
        ("start: A", 1, "no terminal A"),
        ("start: \"a\"\nstart: \"b\"", 2, "defined twice"),
        ("start: A\nA: B\nB: A", 3, "contains itself"),
        ("start: A\n\nA: b\nb: \"x\"", 3, "b is a rule"),
        ("start: sep{a}\na: \"x\"", 1, "templates"),
        ("\nsep{x}: x\nstart: \"a\"", 2, "templates"),
        ("start: \"a\"\n%declare B", 2, "%declare"),
        ("start: \"a\"\n%import python.NAME", 2, "python"),
        ("start: \"a\"\n%import common.NOTHING", 2, "NOTHING"),
        ("start: \"a\" %json {}", 1, "%json"),
        ("start[lazy]: \"a\"", 1, "attributes"),
        ("start: \"a\"\n  | /(?<=b)c/", 2, "look-around"),
        ("start: \"a\"\n  | /b)(c/", 2, "cannot be used"),
        ("start: /\\bword\\b/", 1, "cannot be compiled"),
        ("start: /a/l", 1, "flag l"),
        ("start: \"\"", 1, "empty string"),
        ("start: \"b\"..\"a\"", 1, "range"),
        ("start: \"a\" ~ 3..2", 1, "minimum"),
        ("start: \"a\" ~ 1001", 1, "1000"),
        ("Start: \"a\"", 1, "invalid name"),
        ("start: (\"a\"\nb: \"c\"", 2, "expected"),
        ("start: \"a\" $", 1, "'$'"),
    ];
    for (text, line, word) in table {
        let fault = Grammar::read(text, &mut Budget::default()).expect_err(text).to_string();
        assert!(fault.starts_with(&format!("line {line}: ")) && fault.contains(word), "{text:?} gives {fault:?}");
    }
}

#[test]
fn what_would_take_too_long_is_refused() {
    let deep = format!("start: {}\"a\"{}", "(".repeat(1000), ")".repeat(1000));
    assert!(Grammar::read(&deep, &mut Budget::default()).unwrap_err().to_string().contains("nested parentheses"));
    let doubled: String = (0..40).map(|at| format!("T{at}: T{} T{}\n", at + 1, at + 1)).collect();
    let doubled = Grammar::read(&format!("start: T0\nT40: \"a\"\n{doubled}"), &mut Budget::default()).unwrap_err();
    assert!(doubled.to_string().contains("expanded"), "{doubled}");
    let large = Grammar::read("start: /[\\w ]{1000}{1000}/", &mut Budget::default()).unwrap_err();
    assert!(large.to_string().contains("line 1"), "{large}");
    let many: String = (0..600).map(|at| format!(" | \"{at}\"")).collect();
    assert!(
        Grammar::read(&format!("start: \"a\"{many}"), &mut Budget::default())
            .unwrap_err()
            .to_string()
            .contains("512 terminals")
    );

    let written_out = "\"a\"~1000 ".repeat(70);
    assert!(
        Grammar::read(&format!("start: {written_out}"), &mut Budget::default())
            .unwrap_err()
            .to_string()
            .contains("symbols")
    );

    let ambiguous = grammar("start: start start start | start start | \"a\" |");
    assert_eq!(ambiguous.check("aaaa"), Ok(()));
    assert_eq!(ambiguous.check(&"a".repeat(5000)), Err(MismatchError::TooLong));
    let words = grammar("start: /[a-z]+/+");
    assert_eq!(words.check(&"a".repeat(5000)), Err(MismatchError::TooLong));
    // The longest permitted input, for an unambiguous grammar.
    let text = grammar("start: line*\nline: /[^\\n]*/ \"\\n\"");
    assert_eq!(text.check(&"a line of some length, as there are many\n".repeat(6000)), Ok(()));
}

/// An expression over `a` and `b` in three equivalent forms: as rules, as a terminal, and as a regular expression.
fn expression() -> impl Strategy<Value = (String, String)> {
    let text = "[ab]{1,3}".prop_map(|text| (format!("\"{text}\""), text));
    text.prop_recursive(4, 24, 3, |inner| {
        let several = prop::collection::vec(inner.clone(), 1..4);
        let joined = |parts: Vec<(String, String)>, lark: &str, regex: &str| {
            let (larks, regexes): (Vec<_>, Vec<_>) = parts.into_iter().unzip();
            (format!("({})", larks.join(lark)), format!("(?:{})", regexes.join(regex)))
        };
        let repeated = |(lark, regex): (String, String), at: usize| {
            let (lark_sign, regex_sign) = [("?", "?"), ("*", "*"), ("+", "+"), ("~2", "{2}"), ("~1..3", "{1,3}")][at];
            (format!("({lark}){lark_sign}"), format!("(?:{regex}){regex_sign}"))
        };
        prop_oneof![
            several.clone().prop_map(move |parts| joined(parts, " ", "")),
            several.prop_map(move |parts| joined(parts, " | ", "|")),
            (inner, 0..5_usize).prop_map(move |(part, at)| repeated(part, at)),
        ]
    })
}

proptest! {
    #[test]
    fn a_grammar_without_recursion_takes_what_its_regular_expression_takes(
        (lark, regex) in expression(),
        inputs in prop::collection::vec("[ab]{0,7}", 12),
    ) {
        let regex = Regex::new(&format!(r"\A(?:{regex})\z")).unwrap();
        let rule = grammar(&format!("start: {lark}"));
        let terminal = grammar(&format!("start: T\nT: {lark}"));
        for input in inputs {
            let fits = regex.is_match(&input);
            prop_assert_eq!(rule.check(&input).is_ok(), fits, "{:?} as rules, {}", input, lark);
            prop_assert_eq!(terminal.check(&input).is_ok(), fits, "{:?} as a terminal, {}", input, lark);
        }
    }

    #[test]
    fn what_is_ignored_may_stand_between_any_two_terminals(words in prop::collection::vec("[ab]{1,3}", 0..6), spaces in "[ \t]{0,3}") {
        let grammar = grammar("start: (\"a\" | \"b\")*\n%ignore /[ \\t]+/");
        let letters: Vec<String> = words.concat().chars().map(|c| c.to_string()).collect();
        let input = format!("{spaces}{}{spaces}", letters.join(&spaces));
        prop_assert_eq!(grammar.check(&input), Ok(()));
        let strange = input + "c";
        prop_assert!(grammar.check(&strange).is_err());
    }

    #[test]
    fn whatever_is_given_for_a_grammar_is_read_or_refused(text in "\\PC{0,200}", input in "\\PC{0,20}") {
        if let Ok(grammar) = Grammar::read(&text, &mut Budget::default()) {
            drop(grammar.check(&input));
        }
    }

    #[test]
    fn a_grammar_that_was_tampered_with_is_read_or_refused(
        at in 0..ARITHMETIC.len(),
        put in "[\"/(){}|:~?*+.%A-Za-z\\n]{0,4}",
        input in "[0-9+* ]{0,12}",
    ) {
        let (before, after) = ARITHMETIC.split_at(at);
        if let Ok(grammar) = Grammar::read(&format!("{before}{put}{after}"), &mut Budget::default()) {
            drop(grammar.check(&input));
        }
    }
}
