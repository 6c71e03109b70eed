//! The file that names hooks.

mod asked;

use asked::read;
use run::{Effects, Manifest, Permission};
use toolyard_hooks::{Confirmation, HookPoint, Hooks};

#[test]
fn a_file_that_cannot_be_used_says_what_is_wrong_and_where() {
    let hook = |rest: &str| format!("[[hook]]\nname = \"a\"\non = [\"pre_tool_use\"]\n{rest}");
    let table = [
        ("[[hook]]\nname = ".to_owned(), "line 2, column 8"),
        ("[[hook]]\nname = \"a\"\n".to_owned(), "missing field `on`"),
        ("[[hooks]]\n".to_owned(), "unknown field `hooks`"),
        ("[confirm]\ndangerous = \"perhaps\"".to_owned(), "unknown variant `perhaps`"),
        ("[confirm]\nexcept = [\"[\"]".to_owned(), "confirm.except"),
        ("[[hook]]\nname = \"a\"\non = [\"whenever\"]".to_owned(), "unknown variant `whenever`"),
        ("[[hook]]\nname = \"a\"\non = []\ncommand = [\"true\"]".to_owned(), "hook \"a\": on: is empty"),
        ("[[hook]]\nname = \"\"\non = [\"tool_skip\"]\ncommand = [\"true\"]".to_owned(), "name: must be 1 to 64 bytes"),
        (hook(""), "hook \"a\": command: is missing, and so is url"),
        (hook("command = []"), "hook \"a\": command: is empty"),
        (hook("command = [\"no-such-program-here\"]"), "there is no program \"no-such-program-here\""),
        (hook("command = [\"./nowhere\"]"), "there is no program \"./nowhere\""),
        (hook("url = \"ftp://example.org\""), "hook \"a\": url: ftp://example.org/ is no address"),
        (hook("url = \"http://example.org\"\ncommand = [\"true\"]"), "hook \"a\": url: stands beside command"),
        (hook("command = [\"true\"]\ntimeout_ms = 0"), "hook \"a\": timeout_ms: must be 1 to 60000"),
        (hook("command = [\"true\"]\ntimeout_ms = 60001"), "hook \"a\": timeout_ms: must be 1 to 60000"),
        (hook("command = [\"true\"]\noutput = true"), "hook \"a\": output: is seen after a call alone"),
        (hook("command = [\"true\"]\ntools = [\"{\"]"), "hook \"a\": tools:"),
        (format!("{0}{0}", hook("command = [\"true\"]\n")), "hook \"a\": name: another hook has it"),
    ];
    for (text, expected) in table {
        let error = read(&text).expect_err(expected).to_string();
        assert!(error.contains(expected) && error.contains("hooks.toml"), "{error}");
    }
    let error = Hooks::read("nowhere.toml".as_ref()).expect_err("there is none").to_string();
    assert!(error.contains("nowhere.toml"), "{error}");
}

#[test]
fn hooks_are_asked_when_they_want_to_be() {
    let hooks =
        read("[[hook]]\nname = \"a\"\non = [\"post_tool_use\"]\ncommand = [\"true\"]\noutput = true\ntools = [\"b*\"]");
    let hooks = hooks.expect("it is well formed");
    assert!(hooks.has(HookPoint::PostToolUse) && !hooks.has(HookPoint::PreToolUse));
    assert_eq!(hooks.asked_elsewhere(&[HookPoint::PreToolUse, HookPoint::ToolSkip]), ["a"]);
    assert_eq!(hooks.about_executions(), ["a"]);
    let [bash, glob] = ["bash", "glob"].map(|tool| tool.parse().expect("a tool name"));
    assert_eq!((hooks.holder(&bash, None), hooks.holder(&glob, None)), (Some("a"), None));
    assert!(hooks.watch(&bash, None) && !hooks.watch(&glob, None));
}

fn tool(name: &str, permission: Permission) -> Manifest {
    let effects = Effects::default();
    let wire = proto::v1::Tool {
        name: name.to_owned(),
        input_schema: "{\"type\":\"object\"}".to_owned(),
        permission: proto::convert::manifest::permission_out(permission).into(),
        effects: Some(proto::v1::ToolEffects { read_only: effects.read_only, ..Default::default() }),
        ..Default::default()
    };
    proto::convert::manifest::manifest_in(wire).expect("a manifest").manifest
}

#[test]
fn dangerous_tools_are_confirmed_as_the_deployment_and_the_run_have_it() {
    use Confirmation::{NotNeeded, Required, Wanted};
    let (read_, external) = (tool("read", Permission::Read), tool("bash", Permission::External));
    let known = tool("web_search", Permission::External);
    let wishes = [None, Some(true), Some(false)];
    let table = [
        ("", [Wanted, Wanted, NotNeeded]),
        ("[confirm]\nexcept = [\"web_*\"]", [Wanted, Wanted, NotNeeded]),
        ("[confirm]\ndangerous = \"always\"\nexcept = [\"web_*\"]", [Required, Required, Required]),
        ("[confirm]\ndangerous = \"never\"\nexcept = [\"web_*\"]", [NotNeeded, Wanted, NotNeeded]),
    ];
    for (text, expected) in table {
        let confirm = read(text).expect("it is well formed").confirm;
        assert_eq!(wishes.map(|wish| confirm.of(&external, None, wish)), expected, "{text}");
        assert_eq!(wishes.map(|wish| confirm.of(&read_, None, wish)), [NotNeeded; 3], "{text}");
        if text.contains("except") {
            assert_eq!(confirm.of(&known, None, None), NotNeeded, "{text}");
        }
    }
}
