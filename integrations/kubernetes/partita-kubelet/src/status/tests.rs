use std::collections::BTreeMap;

use partita::ByteSize;
use partita::limits::LimitSet;

use super::*;
use crate::device::tests::h200;
use crate::plan::{Allocated, Size};

fn definition() -> Definition {
    let allocated = [0, 1].map(|which| Allocated {
        request: "gpu".to_owned(),
        pool: "node-a".to_owned(),
        device: h200(which).shared_device(),
        share_id: Some(format!("share-{which}")),
        uuid: h200(which).uuid,
    });
    Definition {
        tenant: "t-1".to_owned(),
        selectors: vec!["0".to_owned(), "1".to_owned()],
        size: Some(Size { sms: 34, memory_bytes: 40 << 30 }),
        is_mig: false,
        limits: BTreeMap::new(),
        allocated: allocated.to_vec(),
    }
}

fn rows() -> Vec<TenantRow> {
    let row = |which: u32| TenantRow {
        name: "t-1".to_owned(),
        gpu_uuid: Some(h200(which).uuid),
        sms: Some(34),
        tpcs: Some("0-16".to_owned()),
        limits: LimitSet { memory: Some(ByteSize(40 << 30).into()), ..LimitSet::default() },
        ..TenantRow::default()
    };
    vec![row(0), row(1)]
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn claim(devices: &[Value]) -> Value {
    let results: Vec<Value> = definition()
        .allocated
        .iter()
        .map(|one| json!({"driver": DRIVER, "pool": one.pool, "device": one.device, "shareID": one.share_id}))
        .collect();
    json!({"status": {"allocation": {"devices": {"results": results}}, "devices": devices}})
}

#[test]
fn an_entry_says_what_the_device_became() {
    let ill = Board { fault: Some("it fell off the bus".to_owned()), ..h200(1) };
    let [first, second] = &entries(&definition(), &rows(), &[h200(0), ill], at(0))[..] else { panic!() };
    assert_eq!(
        first["data"],
        json!({
            "apiVersion": "partita.dev/v1", "kind": "TenantStatus", "tenant": "t-1", "gpu": h200(0).uuid,
            "multiprocessors": 34, "tpcs": "0-16", "memoryBytes": 40u64 << 30,
        })
    );
    assert_eq!(key(first), [DRIVER, "node-a", &h200(0).shared_device(), "share-0"]);
    assert_eq!(first["conditions"][0]["status"], "True");
    assert_eq!(first["conditions"][0]["lastTransitionTime"], "1970-01-01T00:00:00Z");
    let condition = &second["conditions"][0];
    assert_eq!((&condition["status"], &condition["reason"]), (&json!("False"), &json!("Unusable")));
    assert!(condition["message"].as_str().unwrap().contains("fell off the bus"));
    // Of the whole GPU there is no limit.
    let whole = TenantRow { limits: LimitSet::default(), ..rows().remove(0) };
    let entry = &entries(&definition(), &[whole], &[h200(0)], at(0))[0];
    assert!(entry["data"].get("memoryBytes").is_none());
}

#[test]
fn what_is_right_is_not_written_again() {
    let boards = [h200(0), h200(1)];
    let wanted = |second| entries(&definition(), &rows(), &boards, at(second));
    let devices = changed(&claim(&[]), "node-a", wanted(5)).unwrap();
    assert_eq!(devices.len(), 2);
    // Later, with the clock elsewhere, and in another order.
    assert_eq!(changed(&claim(&devices), "node-a", wanted(-7)), None);
    let turned: Vec<Value> = devices.iter().rev().cloned().collect();
    assert_eq!(changed(&claim(&turned), "node-a", wanted(9)), None);
    // A resize is written, and leaves the time of the condition.
    let smaller: Vec<TenantRow> = rows().into_iter().map(|row| TenantRow { sms: Some(10), ..row }).collect();
    let resized = entries(&definition(), &smaller, &boards, at(9));
    let after = changed(&claim(&devices), "node-a", resized).unwrap();
    assert_eq!(after[0]["data"]["multiprocessors"], 10);
    assert_eq!(after[0]["conditions"], devices[0]["conditions"]);
    // A fault changes it.
    let ill = boards.clone().map(|board| Board { fault: Some("gone".to_owned()), ..board });
    let faulty = entries(&definition(), &rows(), &ill, at(9));
    let after = changed(&claim(&devices), "node-a", faulty).unwrap();
    assert_eq!(after[0]["conditions"][0]["lastTransitionTime"], "1970-01-01T00:00:09Z");
}

#[test]
fn entries_of_others_stay_and_what_is_not_allocated_is_not_written() {
    let boards = [h200(0), h200(1)];
    let other = json!({"driver": "net.example", "pool": "node-a", "device": "nic", "new": {"field": 1}});
    let elsewhere = json!({"driver": DRIVER, "pool": "node-b", "device": "gpu-x"});
    let foreign = [other, elsewhere];
    let wanted = || entries(&definition(), &rows(), &boards, at(0));
    let both = changed(&claim(&foreign), "node-a", wanted()).unwrap();
    assert_eq!(both[..2], foreign);
    assert_eq!(both.len(), 4);
    // The tenant has ended.
    assert_eq!(changed(&claim(&both), "node-a", Vec::new()).unwrap(), foreign);
    assert_eq!(changed(&claim(&foreign), "node-a", Vec::new()), None);
    // The claim was deallocated, or allocated anew.
    let mut deallocated = claim(&foreign);
    deallocated["status"]["allocation"] = Value::Null;
    assert_eq!(changed(&deallocated, "node-a", wanted()), None);
    let mut anew = claim(&foreign);
    anew["status"]["allocation"]["devices"]["results"][0]["shareID"] = "another".into();
    assert_eq!(changed(&anew, "node-a", wanted()).unwrap().len(), 3);
}
