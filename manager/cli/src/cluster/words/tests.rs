use aliquot_proto::scheduler::v1::{Mount, SecretUse};
use clap::Parser;
use proptest::prelude::*;

use super::*;

#[derive(Parser, Debug)]
struct Line {
    #[command(flatten)]
    words: JobWords,
}

fn of_line(args: &[String]) -> JobWords {
    let args = std::iter::once("submit".to_owned()).chain(args.iter().cloned());
    Line::try_parse_from(args).unwrap_or_else(|error| panic!("{error}")).words
}

fn line(text: &str) -> JobWords {
    of_line(&text.split(' ').map(ToOwned::to_owned).collect::<Vec<_>>())
}

fn of_file(text: &str) -> JobWords {
    read(text, "job.yaml").unwrap_or_else(|failure| panic!("{failure}\n{text}"))
}

fn refused(text: &str) -> String {
    read(text, "job.yaml").unwrap_err().to_string()
}

/// A word as an option and as a line of a file.
#[derive(Debug, Clone)]
struct Said {
    options: Vec<String>,
    yaml: String,
}

fn said(word: &str, values: &[String], yaml: &str) -> Said {
    let options = values.iter().flat_map(|value| [format!("--{word}"), value.clone()]).collect();
    Said { options, yaml: format!("{word}: {yaml}\n") }
}

fn quoted(text: &str) -> String {
    serde_json::to_string(text).unwrap()
}

/// A word with one value, which YAML may have in quotes or without.
fn scalar(word: &'static str, value: impl Strategy<Value = String>) -> impl Strategy<Value = Said> {
    (value, any::<bool>()).prop_map(move |(value, quote)| {
        let yaml = if quote { quoted(&value) } else { value.clone() };
        said(word, &[value], &yaml)
    })
}

/// The same for text of any kind, which YAML has in quotes.
fn text(word: &'static str, value: &'static str) -> impl Strategy<Value = Said> {
    value.prop_map(move |value| said(word, std::slice::from_ref(&value), &quoted(&value)))
}

fn list(word: &'static str, value: &'static str) -> impl Strategy<Value = Said> {
    proptest::collection::vec(value, 1..4).prop_map(move |values| {
        let yaml = match values.as_slice() {
            [one] => quoted(one),
            more => serde_json::to_string(more).unwrap(),
        };
        said(word, &values, &yaml)
    })
}

fn mapping(word: &'static str) -> impl Strategy<Value = Said> {
    proptest::collection::btree_map("[A-Z_]{1,6}", "\\PC{0,12}", 1..4).prop_map(move |pairs| {
        let values: Vec<String> = pairs.iter().map(|(key, value)| format!("{key}={value}")).collect();
        said(word, &values, &serde_json::to_string(&pairs).unwrap())
    })
}

fn one_of_each() -> Vec<BoxedStrategy<Said>> {
    let size = || "[1-9][0-9]{0,3}(\\.[0-9]{1,3})?(MiB|GiB|GB|Ki)";
    let span = || "[1-9][0-9]{0,2}[smh]([1-5]s)?";
    let count = || "[1-9][0-9]{0,4}";
    let any_text = "[^\\p{C}-]\\PC{0,12}";
    vec![
        text("name", any_text).boxed(),
        text("queue", any_text).boxed(),
        scalar("gpu-core", "[1-9][0-9]?%?|100").boxed(),
        scalar("gpu-core-limit", "[1-9][0-9]?%?|100").boxed(),
        scalar("gpu-memory", size()).boxed(),
        scalar("gpus", count()).boxed(),
        scalar("priority-class", "latency-critical|standard|batch").boxed(),
        scalar("cpu", "[1-9][0-9]?(\\.[0-9]{1,3})?").boxed(),
        scalar("memory", size()).boxed(),
        scalar("gang", count()).boxed(),
        scalar("array", "[0-9]|[0-9]-1[0-9]{2}|[0-3],[4-7],[8-9]-1[0-9]").boxed(),
        scalar("priority", "-?[1-9][0-9]{0,4}|0").boxed(),
        any::<bool>()
            .prop_map(|yes| Said {
                options: vec![format!("--non-preemptible={yes}")],
                yaml: format!("non-preemptible: {yes}\n"),
            })
            .boxed(),
        list("after", "[1-9][0-9]{0,6}").boxed(),
        scalar("time-limit", span()).boxed(),
        scalar("grace", span()).boxed(),
        scalar("retries", "[0-9]{1,3}").boxed(),
        scalar("retry-delay", span()).boxed(),
        scalar("restart", "always|never").boxed(),
        list("node", "[a-z0-9]{1,8}").boxed(),
        mapping("label").boxed(),
        list("gpu-model", "[A-Za-z0-9][A-Za-z0-9 ]{0,8}").boxed(),
        mapping("tolerate").boxed(),
        mapping("env").boxed(),
        text("image", any_text).boxed(),
        list("secret", "[a-z][a-z.-]{0,4}(:[A-Z_]{1,4})?").boxed(),
        list("mount", "(~|/[a-z]{1,4})(:/[a-z]{1,4})?(:r[ow])?").boxed(),
        scalar("shm-size", size()).boxed(),
        text("workdir", "/\\PC{0,12}").boxed(),
    ]
}

/// Some of all words, in any order, and a command.
fn job() -> impl Strategy<Value = (Vec<Said>, Vec<String>)> {
    let words = one_of_each();
    let count = words.len();
    let chosen = (words, proptest::collection::vec(any::<bool>(), count))
        .prop_map(|(words, chosen)| {
            words.into_iter().zip(chosen).filter_map(|(word, chosen)| chosen.then_some(word)).collect()
        })
        .prop_shuffle();
    (chosen, proptest::collection::vec("\\PC{1,8}", 1..4))
}

proptest! {
    #[test]
    fn equal_words_ask_for_the_same_on_the_command_line_and_in_a_file((words, command) in job()) {
        let mut args: Vec<String> = words.iter().flat_map(|word| word.options.clone()).collect();
        args.push("--".to_owned());
        args.extend(command.clone());
        let yaml: String = words.iter().map(|word| word.yaml.clone()).collect();
        let yaml = format!("{yaml}command: {}\n", serde_json::to_string(&command).unwrap());
        let (line, file) = (of_line(&args), of_file(&yaml));
        prop_assert_eq!(&line, &file, "{}", yaml);
        prop_assert_eq!(line.clone().spec().unwrap(), file.clone().spec().unwrap());
        // Each word of the file is there where the command line says nothing, and none where it says all.
        prop_assert_eq!(&JobWords::default().over(file.clone()), &file);
        let both = line.clone().over(file).spec().unwrap();
        prop_assert_eq!(both, line.spec().unwrap());
    }

    #[test]
    fn a_file_never_makes_it_panic(text in "\\PC*|([a-z-]{1,8}: [\\[\\{\"'&*a-z0-9]{0,6}\n){0,4}") {
        let _ = read(&text, "job.yaml");
    }
}

#[test]
fn every_word_has_its_place_in_the_job() {
    let words = line(
        "--name n --queue q --gpu-core 30 --gpu-core-limit 60 --gpu-memory 8GiB --gpus 2 --priority-class batch --cpu 1.5 \
         --memory 16GiB --gang 4 --array 0-2 --priority -7 --non-preemptible --after 3 --after 4 --time-limit 2h --grace 20s --retries 5 --retry-delay 30s \
         --restart never --node a --node b --label zone=a --gpu-model H100 --tolerate k=v --tolerate only --env A=b=c \
         --secret a --secret b.c:B --image debian:12 --mount /data:/in:ro --mount ~ --shm-size 1GiB --workdir /data -- \
         python train.py --lr 3",
    );
    let toleration = |key: &str, value: &str| Toleration { key: key.to_owned(), value: value.to_owned() };
    let mount =
        |source: &str, target: &str, read_only| Mount { source: source.into(), target: target.into(), read_only };
    let secret = |name: &str, variable: &str| SecretUse { name: name.into(), variable: variable.into() };
    let map = |key: &str, value: &str| [(key.to_owned(), value.to_owned())].into_iter().collect();
    let strings = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
    assert_eq!(
        words.spec().unwrap(),
        JobSpec {
            name: "n".to_owned(),
            queue: "q".to_owned(),
            command: strings(&["python", "train.py", "--lr", "3"]),
            environment: map("A", "b=c"),
            work_dir: "/data".to_owned(),
            gpu_core_percent: 30,
            gpu_core_limit_percent: 60,
            priority_class: ClassOfJob::Batch.into(),
            gpu_memory_bytes: 8 << 30,
            gpus: 2,
            cpu_millis: 1500,
            memory_bytes: 16 << 30,
            gang: 4,
            array: vec![0, 1, 2],
            priority: -7,
            non_preemptible: true,
            retries: 5,
            retry_delay_ms: 30_000,
            time_limit_ms: 7_200_000,
            grace_ms: 20_000,
            restart: RestartRule::Never.into(),
            node_labels: map("zone", "a"),
            nodes: strings(&["a", "b"]),
            gpu_models: strings(&["H100"]),
            tolerations: vec![toleration("k", "v"), toleration("only", "")],
            after: vec![3, 4],
            image: "debian:12".to_owned(),
            mounts: vec![mount("/data", "/in", true), mount("~", "", false)],
            shm_bytes: 1 << 30,
            secrets: vec![secret("a", ""), secret("b.c", "B")],
        }
    );
}

#[test]
fn what_is_left_out_is_the_scheduler_s_to_choose_but_for_the_name_and_the_directory() {
    let spec = line("-- /usr/bin/python x.py").spec().unwrap();
    let current = env::current_dir().unwrap().to_str().unwrap().to_owned();
    let expected = JobSpec {
        name: "python".to_owned(),
        command: vec!["/usr/bin/python".to_owned(), "x.py".to_owned()],
        work_dir: current.clone(),
        ..JobSpec::default()
    };
    assert_eq!(spec, expected);
    assert_eq!(line("--workdir data -- x").spec().unwrap().work_dir, format!("{current}/data"));
    assert_eq!(line("--workdir ~data -- x").spec().unwrap().work_dir, format!("{current}/~data"));
    for home in ["~", "~/data"] {
        let failure = line(&format!("--workdir {home} -- x")).spec().unwrap_err().to_string();
        assert!(failure.contains(&format!("--workdir {home:?} begins with a ~, which only a shell")), "{failure}");
    }
    let failure = JobWords::default().spec().unwrap_err();
    assert!(failure.to_string().contains("the job has no command\nhint: "), "{failure}");
}

#[test]
fn an_image_brings_its_own_command_and_directory() {
    let spec = line("--image registry/team/trainer:2").spec().unwrap();
    assert_eq!(spec, JobSpec { image: "registry/team/trainer:2".to_owned(), ..JobSpec::default() });
    assert_eq!(line("--image a --workdir /w -- x").spec().unwrap().work_dir, "/w");
    // Nothing of this machine is in the container.
    let failure = line("--image a --workdir w -- x").spec().unwrap_err().to_string();
    assert!(failure.contains("--workdir \"w\" is no path from the root"), "{failure}");
    assert!(failure.contains("hint: give the whole path in the container"), "{failure}");
}

#[test]
fn options_go_before_the_file_and_pairs_count_one_by_one() {
    let file = of_file(
        "queue: b\ngpus: 4\nnode: [x, y]\nnon-preemptible: true\nenv: {A: file, B: file}\ncommand: [python, train.py]\n",
    );
    let words = line("--queue a --node z --env B=line --env C=line --non-preemptible=false").over(file);
    let spec = words.spec().unwrap();
    assert_eq!((spec.queue.as_str(), spec.gpus, spec.non_preemptible), ("a", 4, false));
    assert_eq!(spec.nodes, ["z"]);
    let mut variables: Vec<String> = spec.environment.iter().map(|(name, value)| format!("{name}={value}")).collect();
    variables.sort();
    assert_eq!(variables, ["A=file", "B=line", "C=line"]);
    assert_eq!(spec.command, ["python", "train.py"]);
}

#[test]
fn a_label_has_one_value() {
    let failure = line("--label zone=a --label disk=ssd --label zone=b -- x").spec().unwrap_err().to_string();
    assert!(failure.contains("--label zone=a and --label zone=b name the same label\nhint: "), "{failure}");
    // An option goes before the file.
    let words = line("--label zone=b").over(of_file("label: {zone: a}\ncommand: [x]\n"));
    assert_eq!(words.spec().unwrap().node_labels["zone"], "b");
}

#[test]
fn a_variable_without_a_value_is_handed_on() {
    let path = env::var("PATH").unwrap();
    for words in [line("--env PATH -- x"), of_file("env: {PATH: }\ncommand: [x]")] {
        assert_eq!(words.spec().unwrap().environment["PATH"], path);
    }
    let failure = line("--env ALIQUOT_NO_SUCH -- x").spec().unwrap_err().to_string();
    assert!(failure.contains("it is not set here") && failure.contains("--env ALIQUOT_NO_SUCH=VALUE"), "{failure}");
}

#[test]
fn yaml_does_not_change_what_is_written() {
    let file = of_file(
        "env: {A: 010, B: 1.50, C: yes, D: 'null', E: 0x1F}\nnode: [007, 1e3]\ngpu-model: 4090\ncommand: [a, 1.0, no]",
    );
    let spec = file.spec().unwrap();
    for (name, value) in [("A", "010"), ("B", "1.50"), ("C", "yes"), ("D", "null"), ("E", "0x1F")] {
        assert_eq!(spec.environment[name], value);
    }
    assert_eq!(spec.nodes, ["007", "1e3"]);
    assert_eq!(spec.gpu_models, ["4090"]);
    assert_eq!(spec.command, ["a", "1.0", "no"]);
    assert_eq!(of_file("node: 007\ncommand: [x]").spec().unwrap().nodes, ["007"]);
}

#[test]
fn errors_in_a_file_tell_the_place_and_the_word_that_was_meant() {
    for (text, expected) in [
        ("name: x\ngpu_core: 30\n", "job.yaml:2:1: there is no key \"gpu_core\"\nhint: did you mean \"gpu-core\"?"),
        ("gpucore: 30\n", "did you mean \"gpu-core\"?"),
        ("GPUs: 2\n", "did you mean \"gpus\"?"),
        ("nonpreemptible: true\n", "did you mean \"non-preemptible\"?"),
        ("zzzz: 1\n", "`aliquot submit --help` explains all options"),
        ("name: x\ngpu-core: 300\n", "job.yaml:2:11: \"300\" is more than one device has"),
        ("gpu-memory: 8G\n", "job.yaml:1:13: \"G\" in \"8G\" could mean GiB"),
        ("mount: data\n", "job.yaml:1:8: \"data\" is no mount; write DIR, DIR:WHERE"),
        ("secret: /etc/shadow\n", "job.yaml:1:9: \"/etc/shadow\" is no secret; write NAME or NAME:VARIABLE"),
        ("secret: [a:2B]\n", "\"a:2B\" is no secret"),
        ("mount: [/a:b]\n", "\"/a:b\" is no mount"),
        ("gang: 0\n", "job.yaml:1:7: \"0\" is no count; write a whole number from 1"),
        ("array: 5-3\n", "job.yaml:1:8: \"5-3\" ends before it begins"),
        ("array: [1, 5-3]\n", "ends before it begins"),
        ("after:\n  - 3\n  - x\n", "job.yaml:3:5: \"x\" is no job"),
        ("restart: nevr\n", "job.yaml:1:10: \"nevr\" is not known; write always or never"),
        ("priority-class: urgent\n", "job.yaml:1:17: \"urgent\" is no priority class; write latency-critical,"),
        ("env: {A: 1, A: 2}\n", "job.yaml:1:13: duplicate mapping key: A"),
        ("label: {a: }\n", "\"a\" is no label; write KEY=VALUE"),
        ("env: [A=b]\n", "job.yaml:1:6: "),
        ("command: python x.py\n", "job.yaml:1:10: "),
        ("gpus: 1\ngpus: 2\n", "job.yaml:2:1: duplicate mapping key: gpus"),
        ("name: \"x\n", "job.yaml:2:1: "),
        ("- name: x\n", "job.yaml:1:1: "),
        ("node: 1.5\n", "in quotes, where it looks like a fraction"),
    ] {
        let failure = refused(text);
        assert!(failure.contains(expected), "{text}: {failure}");
        assert!(failure.contains("\nhint: ") && !failure.contains(" at line "), "{text}: {failure}");
    }
}

#[test]
fn the_schema_has_every_word_with_its_help() {
    let schema = json_schema();
    let words = schema["properties"].as_object().unwrap();
    let options = <JobWords as clap::Args>::augment_args(clap::Command::new("x"));
    let mut ids: Vec<String> =
        options.get_arguments().map(|option| option.get_id().as_str().replace('_', "-")).collect();
    ids.sort();
    let mut known: Vec<&String> = words.keys().collect();
    known.sort();
    assert_eq!(known, ids.iter().collect::<Vec<_>>());
    for (word, schema) in words {
        assert!(schema["description"].as_str().is_some_and(|help| !help.is_empty()), "{word}: {schema}");
        assert!(schema.get("default").is_none(), "{word}: {schema}");
    }
    assert_eq!(schema["additionalProperties"], false);
    assert_eq!(words["restart"]["enum"], serde_json::json!(["always", "never", null]));
}
