//! Pods that claims can express and pods that they cannot; and for any pod: the patch takes every
//! extended resource away, and the same request has the same template.

use proptest::prelude::*;

use super::*;
use crate::device::tests::h200;
use crate::device::{Board, slices};

const H200: BoardSize = BoardSize { tpcs: 66, sms_per_tpc: 2, memory_mib: 142_000 };
const A100: BoardSize = BoardSize { tpcs: 54, sms_per_tpc: 2, memory_mib: 80_000 };

fn rules(boards: &[BoardSize]) -> Rules {
    Rules {
        share_class: "partita-share".to_owned(),
        whole_class: "partita-gpu".to_owned(),
        default_cores: None,
        boards: Some(boards.iter().copied().collect()),
    }
}

fn container(name: &str, limits: Value) -> Value {
    json!({"name": name, "image": "i", "resources": {"limits": limits}})
}

fn pod(containers: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"generateName": "p-"}, "spec": {"containers": containers}})
}

fn translated(pod: &Value, rules: &Rules) -> Translation {
    translate(pod, rules).unwrap().unwrap()
}

fn patched(pod: &Value, translation: &Translation) -> Value {
    let patch: json_patch::Patch = serde_json::from_value(translation.patch.clone()).unwrap();
    let mut pod = pod.clone();
    json_patch::patch(&mut pod, &patch).unwrap();
    pod
}

fn devices(translation: &Translation) -> Value {
    let [template] = &translation.templates[..] else { panic!("{translation:?}") };
    serde_json::to_value(&template.spec.spec.devices).unwrap()
}

#[test]
fn a_pod_of_hami_becomes_one_with_claims() {
    let before = pod(json!([
        {"name": "serve", "resources": {
            "limits": {"cpu": "2", "nvidia.com/gpu": "1", "nvidia.com/gpumem": "20000", "nvidia.com/gpucores": "25"},
            "requests": {"cpu": "1", "nvidia.com/gpu": "1"}}},
        {"name": "log", "resources": {"limits": {"cpu": "1"}}},
        container("batch", json!({"partita.dev/multiprocessors": 34, "partita.dev/memory": "20Gi"})),
    ]));
    let translation = translated(&before, &rules(&[H200]));
    let [serve, batch] = &translation.templates[..] else { panic!("{translation:?}") };
    let [serve_name, batch_name] = [serve, batch].map(|one| one.metadata.name.clone().unwrap());
    assert_eq!(
        patched(&before, &translation)["spec"],
        json!({
            "containers": [
                {"name": "serve", "resources": {
                    "limits": {"cpu": "2"}, "requests": {"cpu": "1"}, "claims": [{"name": "partita-serve"}]}},
                {"name": "log", "resources": {"limits": {"cpu": "1"}}},
                {"name": "batch", "image": "i", "resources": {"claims": [{"name": "partita-batch"}]}},
            ],
            "resourceClaims": [
                {"name": "partita-serve", "resourceClaimTemplateName": serve_name},
                {"name": "partita-batch", "resourceClaimTemplateName": batch_name},
            ],
        })
    );
    // A quarter of 66 TPCs is 16 whole ones.
    assert_eq!(
        serde_json::to_value(&serve.spec.spec).unwrap(),
        json!({"devices": {"requests": [{"name": "gpu", "exactly": {
            "deviceClassName": "partita-share",
            "selectors": [{"cel": {"expression":
                "device.attributes[\"partita.dev\"].tpcs == 66 && device.attributes[\"partita.dev\"].smsPerTpc == 2"}}],
            "capacity": {"requests": {"multiprocessors": "32", "memory": "20000Mi"}},
        }}]}})
    );
    assert_eq!(
        serde_json::to_value(&batch.spec.spec).unwrap(),
        json!({"devices": {"requests": [{"name": "gpu", "exactly": {
            "deviceClassName": "partita-share",
            "capacity": {"requests": {"multiprocessors": "34", "memory": "20480Mi"}},
        }}]}})
    );
    assert_eq!(translation.warnings, Vec::<String>::new());
}

/// The name is part of the interface: another version of the webhook finds the same template. The
/// digits are those of `sha256sum`.
#[test]
fn a_name_is_the_hash_of_the_content() {
    let ask = json!({"nvidia.com/gpu": "1"});
    let all = translated(&pod(json!([container("a", ask.clone()), container("b", ask)])), &rules(&[]));
    let [template] = &all.templates[..] else { panic!("one content is one template: {all:?}") };
    let text = serde_json::to_string(&template.spec.spec).unwrap();
    assert_eq!(
        text,
        r#"{"devices":{"requests":[{"exactly":{"deviceClassName":"partita-gpu"},"name":"gpu"}]}}"#
    );
    assert_eq!(template.metadata.name.as_deref(), Some("partita-d495ec7046d7c7cc36bd"));
}

#[test]
fn whole_and_several_gpus() {
    let whole = translated(&pod(json!([container("a", json!({"nvidia.com/gpu": "2"}))])), &rules(&[]));
    assert_eq!(
        devices(&whole),
        json!({"requests": [{"name": "gpu", "exactly": {"deviceClassName": "partita-gpu", "count": 2}}]})
    );
    // All of it needs no GPU's size, and shares of two GPUs are of two GPUs.
    let limits =
        json!({"nvidia.com/gpu": "2", "nvidia.com/gpucores": "100", "nvidia.com/gpumem-percentage": "100"});
    let shares = translated(&pod(json!([container("a", limits)])), &rules(&[]));
    assert_eq!(
        devices(&shares),
        json!({
            "requests": [{"name": "gpu", "exactly": {"deviceClassName": "partita-share", "count": 2}}],
            "constraints": [{"requests": ["gpu"], "distinctAttribute": "partita.dev/uuid"}],
        })
    );
    let none = translated(&pod(json!([container("a", json!({"nvidia.com/gpu": "0"}))])), &rules(&[]));
    assert_eq!(none.templates, []);
    assert_eq!(none.patch, json!([{"op": "replace", "path": "/spec/containers/0/resources", "value": {}}]));
}

#[test]
fn a_percentage_is_one_of_each_kind_of_gpu() {
    let limits = json!({"nvidia.com/gpucores": "50", "nvidia.com/gpumem-percentage": "50"});
    let both = devices(&translated(&pod(json!([container("a", limits)])), &rules(&[H200, A100])));
    let kinds = both["requests"][0]["firstAvailable"].as_array().unwrap();
    let sizes: Vec<&Value> = kinds.iter().map(|kind| &kind["capacity"]["requests"]).collect();
    assert_eq!(
        sizes,
        [
            &json!({"multiprocessors": "54", "memory": "40000Mi"}),
            &json!({"multiprocessors": "66", "memory": "71000Mi"})
        ]
    );
    assert_eq!(kinds[0]["selectors"].as_array().unwrap().len(), 2);
    assert_eq!(
        kinds[1]["selectors"][1]["cel"]["expression"],
        "device.capacity[\"partita.dev\"].memory.compareTo(quantity(\"142000Mi\")) == 0"
    );
    // Compute alone does not tell boards with other memories apart.
    let other = BoardSize { memory_mib: 96_000, ..H200 };
    let cores = pod(json!([container("a", json!({"nvidia.com/gpucores": "50"}))]));
    let one = devices(&translated(&cores, &rules(&[H200, other])));
    assert_eq!(one["requests"][0]["exactly"]["capacity"]["requests"], json!({"multiprocessors": "66"}));
    let small = pod(json!([container("a", json!({"nvidia.com/gpucores": "1"}))]));
    let tiny = BoardSize { tpcs: 100, ..A100 };
    let said = translate(&small, &rules(&[H200, A100])).unwrap_err();
    assert!(matches!(&said, Refusal::NotExpressible(text) if text.contains("at least 2")), "{said:?}");
    // Where one percent is a TPC, it is one.
    let one = devices(&translated(&small, &rules(&[H200, tiny])));
    assert_eq!(one["requests"][0]["exactly"]["capacity"]["requests"], json!({"multiprocessors": "2"}));
    assert_eq!(translate(&cores, &Rules { boards: None, ..rules(&[]) }), Err(Refusal::NotYet));
}

#[test]
fn the_sizes_are_those_of_the_published_slices() {
    let all: Vec<ResourceSlice> = slices("n", &[h200(0), h200(1), Board { tpcs: 54, ..h200(2) }], 1)
        .into_iter()
        .map(|spec| ResourceSlice { spec, ..ResourceSlice::default() })
        .collect();
    let memory_mib = h200(0).memory_mib();
    let of = |tpcs| BoardSize { tpcs, sms_per_tpc: 2, memory_mib };
    assert_eq!(sizes(&all), BTreeSet::from([of(54), of(66)]));
}

#[test]
fn annotations_of_hami_select_gpus() {
    let mut before = pod(json!([container("a", json!({"nvidia.com/gpu": "1"}))]));
    before["metadata"]["annotations"] =
        json!({"nvidia.com/use-gputype": "h100, A100", "nvidia.com/nouse-gpuuuid": "GPU-\"1", "other": "x"});
    let selectors = devices(&translated(&before, &rules(&[])))["requests"][0]["exactly"]["selectors"].clone();
    assert_eq!(
        selectors,
        json!([
            {"cel": {"expression": "device.attributes[\"partita.dev\"].productName.upperAscii().contains(\"H100\") || \
                device.attributes[\"partita.dev\"].productName.upperAscii().contains(\"A100\")"}},
            {"cel": {"expression": "!(device.attributes[\"partita.dev\"].uuid == \"GPU-\\\"1\")"}},
        ])
    );
    // A pod without GPUs may say what it likes.
    before["spec"]["containers"] = json!([container("a", json!({"cpu": "1"}))]);
    before["metadata"]["annotations"] = json!({"nvidia.com/numa-bind": "true"});
    assert_eq!(translate(&before, &rules(&[])), Ok(None));
}

#[test]
fn init_containers_use_the_claims_of_those_that_follow() {
    let half = json!({"nvidia.com/gpucores": "50"});
    let mut before = pod(json!([container("main", half.clone())]));
    before["spec"]["initContainers"] = json!([container("load", half.clone())]);
    let after = patched(&before, &translated(&before, &rules(&[H200])));
    assert_eq!(after["spec"]["initContainers"][0]["resources"]["claims"], json!([{"name": "partita-main"}]));
    assert_eq!(after["spec"]["resourceClaims"].as_array().unwrap().len(), 1);
    // A sidecar runs beside them, so it has its own.
    before["spec"]["initContainers"][0]["restartPolicy"] = "Always".into();
    let after = patched(&before, &translated(&before, &rules(&[H200])));
    assert_eq!(after["spec"]["initContainers"][0]["resources"]["claims"], json!([{"name": "partita-load"}]));
    // Init containers alone.
    let mut alone = pod(json!([container("main", json!({}))]));
    alone["spec"]["initContainers"] = json!([container("one", half.clone()), container("two", half)]);
    let after = patched(&alone, &translated(&alone, &rules(&[H200])));
    assert_eq!(after["spec"]["resourceClaims"].as_array().unwrap().len(), 1);
    for one in after["spec"]["initContainers"].as_array().unwrap() {
        assert_eq!(one["resources"]["claims"], json!([{"name": "partita-one"}]));
    }
}

#[test]
fn a_long_name_of_a_container_is_hashed() {
    let name = "c".repeat(63);
    let before = pod(json!([container(&name, json!({"nvidia.com/gpu": "1"}))]));
    let after = patched(&before, &translated(&before, &rules(&[])));
    let claim = after["spec"]["resourceClaims"][0]["name"].as_str().unwrap();
    assert!(claim.len() <= 63 && claim.starts_with("partita-"), "{claim}");
}

#[test]
fn small_memory_becomes_the_least_with_a_warning() {
    let limits = json!({"nvidia.com/gpumem": "300", "nvidia.com/gpucores": "100"});
    let translation = translated(&pod(json!([container("a", limits)])), &rules(&[]));
    assert_eq!(
        devices(&translation)["requests"][0]["exactly"]["capacity"]["requests"],
        json!({"memory": "1024Mi"})
    );
    let [warning] = &translation.warnings[..] else { panic!("{translation:?}") };
    assert!(warning.contains("300 MiB become 1024 MiB"), "{warning}");
    // An administrator may say what memory alone means.
    let memory = pod(json!([container("a", json!({"nvidia.com/gpumem": "4000"}))]));
    let chosen = translated(&memory, &Rules { default_cores: Some(20), ..rules(&[H200]) });
    let requests = devices(&chosen)["requests"][0]["exactly"]["capacity"]["requests"].clone();
    assert_eq!(requests, json!({"multiprocessors": "26", "memory": "4000Mi"}));
}

#[test]
fn what_claims_cannot_express_is_refused_with_the_remedy() {
    let one = |limits: Value| pod(json!([container("a", limits)]));
    let mut requests_alone = one(json!({}));
    requests_alone["spec"]["containers"][0]["resources"]["requests"] = json!({"nvidia.com/gpu": "1"});
    let mut unequal = one(json!({"nvidia.com/gpu": "2"}));
    unequal["spec"]["containers"][0]["resources"]["requests"] = json!({"nvidia.com/gpu": "1"});
    let mut init = one(json!({"nvidia.com/gpu": "1"}));
    init["spec"]["initContainers"] = json!([container("load", json!({"nvidia.com/gpu": "2"}))]);
    let mut named = one(json!({"nvidia.com/gpu": "1"}));
    named["spec"]["resourceClaims"] = json!([{"name": "partita-a", "resourceClaimName": "mine"}]);
    let mut twice = one(json!({"nvidia.com/gpu": "1"}));
    twice["spec"]["containers"][0]["resources"]["claims"] = json!([{"name": "partita-x"}]);
    let annotated = |name: &str, value: &str| {
        let mut pod = one(json!({"nvidia.com/gpu": "1"}));
        pod["metadata"]["annotations"] = json!({name: value});
        pod
    };
    let many: Vec<BoardSize> = (50..59).map(|tpcs| BoardSize { tpcs, ..H200 }).collect();
    let cores = one(json!({"nvidia.com/gpucores": "50"}));
    for (pod, boards, words) in [
        (one(json!({"nvidia.com/gpumem": "1000"})), vec![H200], "webhook.defaultCores"),
        (one(json!({"nvidia.com/gpucores": "500m"})), vec![H200], "whole number"),
        (one(json!({"nvidia.com/gpucores": "101"})), vec![H200], "1 to 100"),
        (one(json!({"nvidia.com/gpucores": "0", "nvidia.com/gpumem": "1"})), vec![H200], "100 for all"),
        (one(json!({"nvidia.com/gpucores": "50", "nvidia.com/gpumem": "0"})), vec![H200], "leave it out"),
        (one(json!({"nvidia.com/gpu": "1", "nvidia.com/priority": "0"})), vec![H200], "nvidia.com/priority"),
        (
            one(json!({"nvidia.com/gpu": "0", "nvidia.com/gpucores": "5"})),
            vec![H200],
            "write nvidia.com/gpu: 1",
        ),
        (one(json!({"nvidia.com/gpu": "33"})), vec![H200], "at most 32"),
        (one(json!({"nvidia.com/gpumem": "16E", "nvidia.com/gpucores": "9"})), vec![H200], "no GPU has"),
        (one(json!({"partita.dev/memory": "15E", "nvidia.com/gpucores": "9"})), vec![H200], "no GPU has"),
        (one(json!({"nvidia.com/gpu": "-1"})), vec![H200], "negative"),
        (
            one(
                json!({"nvidia.com/gpumem": "1", "nvidia.com/gpumem-percentage": "1", "nvidia.com/gpucores": "9"}),
            ),
            vec![H200],
            "one of them",
        ),
        (
            one(json!({"partita.dev/multiprocessors": "2", "nvidia.com/gpucores": "9"})),
            vec![H200],
            "one of them",
        ),
        (one(json!({"partita.dev/multiprocessors": "0"})), vec![H200], "at least one TPC"),
        (requests_alone, vec![H200], "write it in `limits`"),
        (unequal, vec![H200], "the limit 2 and the request 1"),
        (init, vec![H200], "give it the sizes of one of them"),
        (named, vec![H200], "rename it"),
        (twice, vec![H200], "remove the claim or the resources"),
        (annotated("nvidia.com/numa-bind", "true"), vec![H200], "numa-bind"),
        (annotated("hami.io/gpu-scheduler-policy", "spread"), vec![H200], "gpu-scheduler-policy"),
        (annotated("nvidia.com/vgpu-mode", "mig"), vec![H200], "one mode"),
        (annotated("nvidia.com/use-gputype", " , "), vec![H200], "names nothing"),
        (annotated("nvidia.com/use-gputype", "é"), vec![H200], "ASCII"),
        (cores.clone(), vec![], "no node offers"),
        (cores, many, "9 sizes"),
    ] {
        match translate(&pod, &rules(&boards)) {
            Err(Refusal::NotExpressible(said)) => assert!(said.contains(words), "{words}: {said}"),
            other => panic!("{words}: {other:?}"),
        }
    }
}

fn limits() -> impl Strategy<Value = Value> {
    let amount = |name: &'static str, values: std::ops::Range<u64>| {
        prop::option::of(values).prop_map(move |value| value.map(|value| (name.to_owned(), value)))
    };
    let all = (
        amount(GPU, 0..4),
        amount(GPUCORES, 1..101),
        amount(GPUMEM, 1..90_000),
        amount(GPUMEM_PERCENTAGE, 1..101),
        amount(OWN_MULTIPROCESSORS, 1..133),
        amount(OWN_MEMORY, 1..(90 << 30)),
        amount("cpu", 1..4),
    );
    all.prop_map(|(a, b, c, d, e, f, g)| {
        let all = [a, b, c, d, e, f, g].into_iter().flatten();
        Value::Object(all.map(|(name, value)| (name, Value::from(value.to_string()))).collect())
    })
}

fn any_pod() -> impl Strategy<Value = Value> {
    let list = |most| prop::collection::vec((limits(), any::<bool>(), any::<bool>()), 0..most);
    (list(4), list(3)).prop_map(|(containers, inits)| {
        let made = |kind: &str, all: Vec<(Value, bool, bool)>| -> Vec<Value> {
            let one = |(at, (limits, is_sidecar, has_requests)): (usize, (Value, bool, bool))| {
                let mut one = container(&format!("{kind}{at}"), limits.clone());
                if has_requests {
                    one["resources"]["requests"] = limits;
                }
                if is_sidecar {
                    one["restartPolicy"] = "Always".into();
                }
                one
            };
            all.into_iter().enumerate().map(one).collect()
        };
        let mut pod = pod(made("c", containers).into());
        pod["spec"]["initContainers"] = made("i", inits).into();
        pod
    })
}

fn containers_of(pod: &Value) -> impl Iterator<Item = &Value> {
    ["initContainers", "containers"]
        .into_iter()
        .flat_map(|kind| pod["spec"][kind].as_array().into_iter().flatten())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_pod_is_translated_once_and_the_same_way(pods in prop::collection::vec(any_pod(), 1..6)) {
        let rules = rules(&[H200, A100]);
        let mut contents: BTreeMap<String, String> = BTreeMap::new();
        let mut names: BTreeMap<String, String> = BTreeMap::new();
        for before in &pods {
            let Ok(translation) = translate(before, &rules) else { continue };
            prop_assert_eq!(&translation, &translate(before, &rules).unwrap());
            let asks = |one: &Value| RESOURCES.iter().any(|name| one["resources"]["limits"].get(name).is_some());
            let Some(translation) = translation else {
                prop_assert!(!containers_of(before).any(asks));
                continue;
            };
            for template in &translation.templates {
                let name = template.metadata.name.clone().unwrap();
                let content = serde_json::to_string(&template.spec).unwrap();
                prop_assert_eq!(contents.entry(name.clone()).or_insert_with(|| content.clone()), &content);
                prop_assert_eq!(names.entry(content).or_insert_with(|| name.clone()), &name);
            }
            let after = patched(before, &translation);
            prop_assert_eq!(translate(&after, &rules), Ok(None), "a second time changes nothing");
            let claims: BTreeMap<&str, &str> = after["spec"]["resourceClaims"].as_array().into_iter().flatten()
                .map(|one| (one["name"].as_str().unwrap(), one["resourceClaimTemplateName"].as_str().unwrap()))
                .collect();
            let mut used = BTreeSet::new();
            let none = Vec::new();
            for (old, new) in containers_of(before).zip(containers_of(&after)) {
                let held = new["resources"]["claims"].as_array().unwrap_or(&none);
                let is_zero = old["resources"]["limits"][GPU] == "0";
                prop_assert_eq!(held.len(), usize::from(asks(old) && !is_zero));
                for one in held {
                    let name = one["name"].as_str().unwrap();
                    used.insert(name);
                    let of = claims[name];
                    prop_assert!(translation.templates.iter().any(|one| one.metadata.name.as_deref() == Some(of)));
                }
                // What is not ours stays.
                let mut rest = old.clone();
                rest["resources"] = new["resources"].clone();
                prop_assert_eq!(&rest, new);
                prop_assert_eq!(new["resources"]["limits"].get("cpu"), old["resources"]["limits"].get("cpu"));
            }
            prop_assert_eq!(used.len(), claims.len(), "every claim is used");
        }
    }
}

/// Whether the selectors of a request are true of a device, as the scheduler evaluates them.
fn is_selected(selectors: &Value, device: &k8s_openapi::api::resource::v1::Device) -> bool {
    let mut env = cel::Env::stdlib();
    env.add_extension(cel::extensions::strings).unwrap();
    let mut context = cel::Context::with_env(std::sync::Arc::new(env));
    let text = |text: std::sync::Arc<String>| whole(&Quantity(text.to_string())).unwrap();
    context.add_function("quantity", text).unwrap();
    let compare = |cel::extractors::This(one): cel::extractors::This<u64>, other: u64| one.cmp(&other) as i64;
    context.add_function("compareTo", compare).unwrap();
    let attributes: Map<String, Value> = device
        .attributes
        .iter()
        .flatten()
        .map(|(name, value)| {
            let value = match (&value.int, &value.string, &value.bool) {
                (Some(number), ..) => json!(number),
                (_, Some(text), _) => json!(text),
                (_, _, Some(flag)) => json!(flag),
                _ => json!(value.version),
            };
            (name.clone(), value)
        })
        .collect();
    let capacity: Map<String, Value> = device
        .capacity
        .iter()
        .flatten()
        .map(|(name, value)| (name.clone(), json!(whole(&value.value).unwrap())))
        .collect();
    let device =
        json!({"driver": DRIVER, "attributes": {DRIVER: attributes}, "capacity": {DRIVER: capacity}});
    context.add_variable("device", device).unwrap();
    selectors.as_array().into_iter().flatten().all(|selector| {
        let expression = selector["cel"]["expression"].as_str().unwrap();
        let program =
            cel::Program::compile(expression).unwrap_or_else(|error| panic!("{expression}: {error}"));
        match program.execute(&context).unwrap_or_else(|error| panic!("{expression}: {error}")) {
            cel::Value::Bool(is_true) => is_true,
            other => panic!("{expression} is {other:?}"),
        }
    })
}

/// The shared devices of a cluster of these boards, and their sizes.
fn cluster(boards: &[Board]) -> (Vec<k8s_openapi::api::resource::v1::Device>, BTreeSet<BoardSize>) {
    let all: Vec<ResourceSlice> = slices("n", boards, 1)
        .into_iter()
        .map(|spec| ResourceSlice { spec, ..ResourceSlice::default() })
        .collect();
    let devices = all.iter().flat_map(|slice| slice.spec.devices.clone().unwrap_or_default());
    (devices.filter(|device| device.allow_multiple_allocations == Some(true)).collect(), sizes(&all))
}

#[test]
fn selectors_are_true_of_the_gpus_that_they_mean() {
    let other = Board { product: "NVIDIA A100-SXM4-80GB".to_owned(), tpcs: 54, ..h200(1) };
    let (shared, boards) = cluster(&[h200(0), other]);
    let rules = Rules { boards: Some(boards), ..rules(&[]) };
    let selected = |annotations: Value| -> Vec<bool> {
        let mut before = pod(json!([container("a", json!({"nvidia.com/gpu": "1"}))]));
        before["metadata"]["annotations"] = annotations;
        let request = devices(&translated(&before, &rules))["requests"][0]["exactly"].clone();
        shared.iter().map(|device| is_selected(&request["selectors"], device)).collect()
    };
    assert_eq!(selected(json!({})), [true, true]);
    assert_eq!(selected(json!({"nvidia.com/use-gputype": "a100,h100"})), [false, true]);
    assert_eq!(selected(json!({"nvidia.com/nouse-gputype": "a100,h100"})), [true, false]);
    assert_eq!(selected(json!({"nvidia.com/use-gpuuuid": h200(0).uuid})), [true, false]);
    assert_eq!(selected(json!({"nvidia.com/nouse-gpuuuid": h200(0).uuid})), [false, true]);
}

fn any_board() -> impl Strategy<Value = (u32, u32, u64)> {
    (1u32..90, 1u32..3, (4u64 << 30)..(200 << 30))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    /// On each GPU of the cluster a percentage is a size that the scheduler consumes unchanged, and
    /// percentages that add up to at most 100 fit together.
    #[test]
    fn a_percentage_fits_each_gpu_that_it_selects(
        sizes in prop::collection::vec(any_board(), 1..6),
        cores in (1u64..100, 1u64..100),
        memory in (1u64..100, 1u64..100),
    ) {
        let boards: Vec<Board> = sizes.iter().zip(0..).map(|(&(tpcs, sms_per_tpc, memory_bytes), which)| {
            Board { tpcs, sms_per_tpc, memory_bytes, ..h200(which) }
        }).collect();
        let (shared, known) = cluster(&boards);
        let rules = Rules { boards: Some(known), ..rules(&[]) };
        let consumed = |cores: u64, memory: u64| -> Option<Vec<Option<BTreeMap<String, u64>>>> {
            let limits = json!({"nvidia.com/gpucores": cores.to_string(), "nvidia.com/gpumem-percentage": memory.to_string()});
            let translation = translate(&pod(json!([container("a", limits)])), &rules).ok()??;
            let request = devices(&translation)["requests"][0].clone();
            let kinds = match request["exactly"].is_object() {
                true => vec![request["exactly"].clone()],
                false => request["firstAvailable"].as_array().unwrap().clone(),
            };
            Some(shared.iter().map(|device| {
                let mut fitting = kinds.iter().filter(|kind| is_selected(&kind["selectors"], device));
                let kind = fitting.next()?;
                assert!(fitting.next().is_none(), "{kinds:?} are two kinds of one GPU");
                let requests = kind["capacity"]["requests"].as_object().unwrap();
                let number = |value: &Value| whole(&quantity(value)).unwrap();
                Some(requests.iter().map(|(name, value)| (name.clone(), number(value))).collect())
            }).collect())
        };
        let both = [consumed(cores.0, memory.0), consumed(cores.1, memory.1)];
        let is_together = cores.0 + cores.1 <= 100 && memory.0 + memory.1 <= 100;
        for (device, which) in shared.iter().zip(0..) {
            let here: Vec<_> = both.iter().flatten().filter_map(|all| all[which].clone()).collect();
            for name in [MULTIPROCESSORS, MEMORY] {
                let capacity = &device.capacity.as_ref().unwrap()[name];
                let range = capacity.request_policy.as_ref().unwrap().valid_range.as_ref().unwrap();
                let [min, step, max] = [&range.min, range.step.as_ref().unwrap(), range.max.as_ref().unwrap()]
                    .map(|value| whole(value).unwrap());
                for one in &here {
                    prop_assert!(crate::quantity::is_in_steps(one[name], min, step, max), "{name} {one:?}");
                }
                let sum: u64 = here.iter().map(|one| one[name]).sum();
                let is_raised = here.iter().any(|one| one[name] == min);
                prop_assert!(!is_together || is_raised || sum <= max, "{name}: {sum} of {max}");
            }
            // Where one percent or more is a TPC, each GPU has its kind.
            let tpcs = device.attributes.as_ref().unwrap()["tpcs"].int.unwrap() as u64;
            for (one, cores) in both.iter().zip([cores.0, cores.1]) {
                let is_there = one.as_ref().is_some_and(|all| all[which].is_some());
                prop_assert_eq!(is_there, tpcs * cores / 100 > 0);
            }
        }
    }
}

/// Any JSON, mostly of the words that matter.
fn any_json() -> impl Strategy<Value = Value> {
    let words = [
        "spec",
        "metadata",
        "annotations",
        "containers",
        "initContainers",
        "resources",
        "limits",
        "requests",
        "claims",
        "resourceClaims",
        "name",
        "restartPolicy",
        "nvidia.com/use-gputype",
        "nvidia.com/vgpu-mode",
        "hami.io/gpu-scheduler-policy",
        "partita-a",
        "Always",
        "a",
    ];
    let word = move || prop::sample::select([&words[..], &RESOURCES[..]].concat());
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        (0u64..200).prop_map(|number| Value::from(number.to_string())),
        "[0-9.eEkKMGim+-]{0,12}".prop_map(Value::from),
        word().prop_map(Value::from),
        ".{0,70}".prop_map(Value::from),
    ];
    leaf.prop_recursive(6, 40, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((word(), inner), 0..6)
                .prop_map(|all| all.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()),
        ]
    })
}

/// A value somewhere in a pod is another one.
fn broken_pod() -> impl Strategy<Value = Value> {
    (any_pod(), any_json(), any::<u64>()).prop_map(|(mut pod, other, mut place)| {
        let mut here = &mut pod;
        loop {
            let count = match &*here {
                Value::Object(all) => all.len() as u64,
                Value::Array(all) => all.len() as u64,
                _ => 0,
            };
            if count == 0 || place % (count + 1) == count {
                *here = other;
                return pod;
            }
            let which = (place % (count + 1)) as usize;
            place /= count + 1;
            here = match here {
                Value::Object(all) => all.values_mut().nth(which).unwrap(),
                Value::Array(all) => &mut all[which],
                _ => unreachable!("it has {count} parts"),
            };
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20_000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Before the API server has validated them, pods can have any form. None ends the webhook.
    #[test]
    fn whatever_a_pod_looks_like_there_is_an_answer(pod in prop_oneof![any_json(), broken_pod()]) {
        let rules = Rules { default_cores: Some(20), ..rules(&[H200, A100]) };
        if let Ok(Some(translation)) = translate(&pod, &rules) {
            let after = patched(&pod, &translation);
            prop_assert_eq!(translate(&after, &rules), Ok(None));
        }
    }
}

/// A claim's name does not say whose it is.
#[test]
fn another_claim_of_the_container_is_a_warning() {
    let mut pod = pod(json!([container("a", json!({"nvidia.com/gpu": "1"}))]));
    pod["spec"]["containers"][0]["resources"]["claims"] = json!([{"name": "nic"}]);
    pod["spec"]["resourceClaims"] = json!([{"name": "nic", "resourceClaimName": "mine"}]);
    let translation = translated(&pod, &rules(&[]));
    let [warning] = &translation.warnings[..] else { panic!("{:?}", translation.warnings) };
    assert!(warning.contains("container a: it has the claim \"nic\" already"), "{warning}");
}
