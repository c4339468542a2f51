//! Values in serialized requests, as the command line writes them.

use std::fmt::Display;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serializer, de};

pub(super) fn serialize<T: Display, S: Serializer>(value: &Option<T>, to: S) -> Result<S::Ok, S::Error> {
    match value {
        Some(value) => to.serialize_some(&value.to_string()),
        None => to.serialize_none(),
    }
}

pub(super) fn deserialize<'de, T, D>(from: D) -> Result<Option<T>, D::Error>
where
    T: FromStr<Err: Display>,
    D: Deserializer<'de>,
{
    let text = Option::<String>::deserialize(from)?;
    text.map(|text| text.parse()).transpose().map_err(de::Error::custom)
}

/// Values that have a name.
pub(super) mod named {
    use partita_core::time::{Policy, Priority};

    use super::{Deserialize, Deserializer, Display, FromStr, Serializer, de};

    pub trait Named {
        fn name(self) -> &'static str;
    }

    impl Named for Priority {
        fn name(self) -> &'static str {
            Priority::name(self)
        }
    }

    impl Named for Policy {
        fn name(self) -> &'static str {
            Policy::name(self)
        }
    }

    pub fn serialize<T: Named + Copy, S: Serializer>(value: &T, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(value.name())
    }

    pub fn deserialize<'de, T, D>(from: D) -> Result<T, D::Error>
    where
        T: FromStr<Err: Display>,
        D: Deserializer<'de>,
    {
        String::deserialize(from)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use partita_core::time::{Policy, Priority};
    use partita_core::{ByteSize, Share};

    use crate::offered::TimeShare;
    use crate::request::RunRequest;

    #[test]
    fn a_request_is_the_same_after_it_was_sent() {
        let request = RunRequest {
            gpus: Some("sim:h200,1".parse().unwrap()),
            share: Some(Share::Percent(12_500)),
            memory: Some(ByteSize((5 << 30) + 1)),
            driver_allowance: Some(ByteSize(0)),
            priority: Priority::Low,
            time: Some(TimeShare(125)),
            time_policy: Policy::Soft,
            compact: true,
            command: vec!["a program".into(), "--x".into()],
            ..RunRequest::default()
        };
        for request in [request, RunRequest::default()] {
            let sent = serde_json::to_string(&request).unwrap();
            let received: RunRequest = serde_json::from_str(&sent).unwrap();
            assert_eq!(format!("{received:?}"), format!("{request:?}"));
        }
    }
}
