//! What a program is started with: an environment that limits it is understood or refused, and
//! never taken for one without limits.
#![no_main]

use libfuzzer_sys::fuzz_target;
use partita_core::hami::{DEVICES_MAX, Says, names, ordinals};
use partita_core::visible::{Gpu, Instance, Shown, shown};

const LIMIT: &[u8] = b"CUDA_DEVICE_MEMORY_LIMIT=";
const OFF: [&[u8]; 2] = [b"CUDA_DISABLE_CONTROL=", b"DISABLE_VGPU_CONTROL="];

fuzz_target!(|environment: &[u8]| {
    let entries = || environment.split(|&byte| byte == 0);
    let says = Says::of(entries());
    assert_eq!(says, Says::of(entries()), "the same environment says the same");
    // The first one, as for getenv(3); an empty one does not count.
    let limit = entries().find_map(|entry| entry.strip_prefix(LIMIT)).filter(|value| !value.is_empty());
    match &says {
        Says::Asks(asked) => {
            for device in 0..DEVICES_MAX + 2 {
                assert!(asked.cores_percent(device).is_none_or(|percent| (1..100).contains(&percent)));
                assert_ne!(asked.memory_bytes(device), Some(0));
            }
            if let Some(digits) = limit.and_then(|value| value.strip_suffix(b"m"))
                && let Ok(megabytes) = str::from_utf8(digits).unwrap_or("").parse::<u64>()
                && !digits.starts_with(b"+")
            {
                // Beyond the devices that variables number there is the general limit alone.
                assert_eq!(asked.memory_bytes(DEVICES_MAX).unwrap_or(0), megabytes << 20);
            }
            assert!(!asked.cache().is_empty());
            for entry in asked.listed().unwrap_or_default() {
                let _ = names(entry, &[0xab; 16]);
            }
            let _ = asked.notes().count();
        }
        Says::Nothing => assert_eq!(limit, None),
        Says::Off => assert!(entries().any(|entry| OFF.iter().any(|off| entry.starts_with(off)))),
        Says::Unclear(unreadable) => assert!(unreadable.to_string().len() < 1024),
    }
    if let Ok(text) = str::from_utf8(environment) {
        assert!(ordinals(text).is_none_or(|numbers| !numbers.is_empty()));
        let instance = |byte| Instance { uuid: [byte; 16], gpu_instance: u32::from(byte), compute_instance: 0 };
        let cut = Some(vec![instance(1), instance(2)]);
        let gpus = [Gpu { uuid: [0xab; 16], instances: cut }, Gpu { uuid: [0xac; 16], instances: None }];
        let seen = shown(Some(text), &gpus);
        let is_there = |device: &Shown| gpus[device.gpu].instances.is_some() == device.instance.is_some();
        assert!(seen.iter().all(is_there));
        assert!(seen.len() <= 1 || seen.iter().all(|device| device.instance.is_none()), "an instance is alone");
    }
});
