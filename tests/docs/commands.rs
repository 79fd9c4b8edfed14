//! Commands that documents show are commands: the command line itself is asked.

use std::collections::BTreeSet;

use clap::{Command, CommandFactory, Parser};
use windlass::cli::Cli;

use super::markdown::all;

/// The simple commands of a script, each as its words. What a here-document holds is no command.
fn commands(script: &str) -> Vec<Vec<String>> {
    let (mut found, mut command, mut word) = (Vec::new(), Vec::new(), None::<String>);
    let (mut quote, mut here) = (None, false);
    let joined = script.replace("\\\n", " ");
    for line in joined.lines() {
        if here {
            here = line != "EOF";
            continue;
        }
        here = line.contains("<<'EOF'");
        let mut letters = line.chars().peekable();
        while let Some(letter) = letters.next() {
            match (quote, letter) {
                (Some(open), _) if letter == open => quote = None,
                (Some(_), _) => word.get_or_insert_default().push(letter),
                (None, '\'' | '"') => {
                    quote = Some(letter);
                    word.get_or_insert_default();
                }
                (None, '#') if word.is_none() => break,
                (None, '$') if letters.peek() == Some(&'(') => {}
                (None, ' ') => command.extend(word.take()),
                (None, '|' | '&' | ';' | '(' | ')' | '<' | '>') => {
                    command.extend(word.take());
                    found.push(std::mem::take(&mut command));
                }
                (None, _) => word.get_or_insert_default().push(letter),
            }
        }
        if quote.is_none() {
            command.extend(word.take());
            found.push(std::mem::take(&mut command));
        }
    }
    found.retain(|words| !words.is_empty());
    found
}

/// The words from `windlass` on, where it is what runs: at the beginning, after variables, or behind `--`.
fn ours(words: &[String]) -> Option<&[String]> {
    let at = words.iter().position(|word| word == "windlass")?;
    let starts = words[..at].iter().all(|word| word.contains('=') && !word.starts_with('-'));
    (starts || words[at - 1] == "--").then(|| &words[at..])
}

/// Words in capitals stand for what the reader knows.
fn filled_in(word: &str) -> String {
    let stands_for = word.starts_with(|c: char| c.is_ascii_uppercase() || c == '$')
        && word.chars().all(|c| c.is_ascii_uppercase() || "$_#/-".contains(c));
    match word {
        "N" => "1".to_owned(),
        _ if stands_for || word.starts_with('$') => word.trim_start_matches('$').to_lowercase(),
        _ => word.to_owned(),
    }
}

/// Which words are no subcommand and no option of the command that they are given to. In running text words with `|`
/// between them are a choice.
fn unknown(words: &[String]) -> Vec<String> {
    let mut whole = Cli::command();
    whole.build();
    let (mut here, mut wrong): (&Command, Vec<String>) = (&whole, Vec::new());
    let words: Vec<&String> = words[1..].iter().take_while(|word| *word != "--").collect();
    for word in words {
        if let Some(flag) = word.strip_prefix("--") {
            let name = flag.split('=').next().unwrap_or(flag);
            if !here.get_arguments().any(|known| known.get_long() == Some(name)) {
                wrong.push(format!("{} has no --{name}", here.get_name()));
            }
        } else if let Some(letter) = word.strip_prefix('-').and_then(|rest| rest.chars().next()) {
            if !here.get_arguments().any(|known| known.get_short() == Some(letter)) {
                wrong.push(format!("{} has no -{letter}", here.get_name()));
            }
        } else if here.has_subcommands() {
            let names: Vec<&str> = word.split('|').collect();
            wrong.extend(
                names.iter().filter(|name| here.find_subcommand(name).is_none()).map(|name| format!("no {name}")),
            );
            match here.find_subcommand(names[0]) {
                Some(below) if names.len() == 1 => here = below,
                _ => return wrong,
            }
        }
    }
    wrong
}

#[test]
fn every_command_in_a_script_is_understood_as_it_stands() {
    let (mut wrong, mut seen) = (Vec::new(), BTreeSet::new());
    for document in all() {
        for block in document.blocks.iter().filter(|block| block.language == "sh") {
            for words in commands(&block.text) {
                // A function of that name is no command; what it is given is checked where it is called.
                let Some(words) = ours(&words).filter(|words| words.len() > 1 && words[1] != "$@") else { continue };
                seen.insert(words.iter().skip(1).take(2).cloned().collect::<Vec<_>>().join(" "));
                wrong.extend(unknown(words).into_iter().map(|what| format!("{}: {what}", block.place)));
                // The shell fills in the rest; what clap thinks of the whole is asked here.
                if let Err(error) = Cli::try_parse_from(words.iter().map(|word| filled_in(word))) {
                    wrong.push(format!("{}: {}: {error}", block.place, words.join(" ")));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(seen.len() > 12, "{seen:?}");
}

#[test]
fn every_command_in_running_text_is_one() {
    let (mut wrong, mut seen) = (Vec::new(), 0);
    for document in all() {
        for (line, code) in document.code() {
            let words: Vec<String> = code.split_whitespace().map(str::to_owned).collect();
            if words.len() > 1 && words[0] == "windlass" && words[1] != "…" {
                seen += 1;
                wrong.extend(
                    unknown(&words).into_iter().map(|what| format!("{}:{line}: {code}: {what}", document.path)),
                );
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(seen > 20, "{seen}");
}

#[test]
fn what_is_no_command_is_seen() {
    let of = |script: &str| {
        let all = commands(script);
        all.iter().filter_map(|words| ours(words)).flat_map(unknown).collect::<Vec<_>>()
    };
    assert_eq!(of("A=b windlass queue get -q shop/emails -o json | jq .x # no windlass thing"), Vec::<String>::new());
    assert_eq!(of("id=$(windlass task gett x)"), ["no gett"]);
    assert_eq!(of("kubectl exec deploy/windlass -- windlass queue list --names x"), ["list has no --names"]);
    assert_eq!(of("helm install windlass charts/windlass"), Vec::<String>::new());
    assert_eq!(of("windlass dlq replay \\\n  --rate 10/s -z"), ["replay has no -z"]);
    let after = commands("cat > x <<'EOF'\nwindlass nonsense\nEOF\nwindlass events");
    assert_eq!(after.last().map(|words| words.join(" ")).as_deref(), Some("windlass events"));
    assert!(after.iter().all(|words| !words.contains(&"nonsense".to_owned())));
}
