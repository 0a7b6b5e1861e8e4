//! What engines on different hosts say before and beside their frames.

use penstock_session::opening::channel_opening;
use penstock_session::{OpeningCode, Refusal, Secret, StreamKey};

use crate::targets::channel::{Conversation, hears};
use crate::targets::opening::KEY;

type Files = Vec<(&'static str, Vec<u8>)>;

pub(super) fn openings() -> Files {
    let stream = |index: u16| StreamKey::derive(&KEY).token(index).encode();
    let refusal = |code, text: &str| Refusal::new(code, text).encode();
    vec![
        ("channel", [channel_opening().as_slice(), b"and more"].concat()),
        ("channel-later", b"PNSN\x02\0\0\0".to_vec()),
        ("stream", [stream(3).as_slice(), b"data"].concat()),
        ("stream-last", stream(u16::MAX).to_vec()),
        ("refusal", refusal(OpeningCode::WrongSecret, "the secrets differ")),
        ("refusal-later", refusal(OpeningCode::Other(900), "")),
        ("refusal-longest", refusal(OpeningCode::Busy, &"ö".repeat(128))),
        ("frames", b"PNSK\x01\0\x01\0".to_vec()),
    ]
}

pub(super) fn channels() -> Files {
    let Conversation { first, second, sealed, sealed_back } = Conversation::new();
    let to = |who: u8, messages: &[&[u8]]| [[who].as_slice(), &messages.concat()].concat();
    let (sealed, sealed_back) = (sealed.concat(), sealed_back.concat());
    let refusal = Refusal::new(OpeningCode::WrongSecret, "the secrets differ").encode();
    vec![
        ("caller", to(hears::CALLER, &[&second, &sealed_back])),
        ("caller-refused", to(hears::CALLER, &[&refusal])),
        ("caller-reflected", to(hears::CALLER, &[&first, &sealed])),
        ("listener", to(hears::LISTENER, &[&first, &sealed])),
        ("listener-twice", to(hears::LISTENER, &[&first, &first])),
        ("listener-long", to(hears::LISTENER, &[&[0xff; 300]])),
        ("open-caller", to(hears::OPEN_CALLER, &[&sealed_back])),
        ("open-listener", to(hears::OPEN_LISTENER, &[&sealed])),
        ("open-listener-reflected", to(hears::OPEN_LISTENER, &[&sealed_back])),
        ("open-listener-empty", to(hears::OPEN_LISTENER, &[&[16, 0], &[0; 16]])),
    ]
}

pub(super) fn secrets() -> Files {
    let line = Secret::new([0x5a; 32]).to_text();
    vec![
        ("line", line.clone().into_bytes()),
        ("words", format!("# of the lab\r\n\n  {}\n# keep it", line.to_uppercase()).into_bytes()),
        ("two", line.repeat(2).into_bytes()),
        ("short", line.as_bytes()[..40].to_vec()),
        ("not-text", vec![0xff; 64]),
    ]
}

pub(super) fn directories() -> Files {
    let text = "# prefill\nprefill-0 10.0.0.7:4711,[2001:db8::7]:4711\n\ndecode-0\tdecode-0.lab:65535 # new\n";
    let many: String = (0..200).map(|number| format!("n{number} h:1\n")).collect();
    let addresses = format!("a {}h:1\n", "h:1,".repeat(15));
    vec![
        ("usual", text.as_bytes().to_vec()),
        ("twice", b"a h:1\na h:2\n".to_vec()),
        ("many", many.into_bytes()),
        ("addresses", addresses.into_bytes()),
        ("no-address", b"a\n".to_vec()),
        ("no-port", b"a h\nb [::1]\n".to_vec()),
    ]
}
