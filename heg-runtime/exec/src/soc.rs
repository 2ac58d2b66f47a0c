//! The roles of a SoC's devices, and the properties that its file sets for kernels.

use heg_artifacts::manifest::Variant;
use heg_spec::soc::{Device, Soc};
use heg_spec::{DeviceClass, Group};

/// Returns the device that plays a role: the first of its class.
pub(crate) fn device_of(soc: &Soc, role: DeviceClass) -> Option<&Device> {
    let mut devices = soc.devices.iter();
    devices.find(|device| device.class == role)
}

/// Whether CPU programs play a device's role beside an NPU, which computes parts of products where the role is one of a pair
/// and nothing else.
pub(crate) fn has_npu_beside(device: &Device) -> bool {
    let is_npu = DeviceClass::of_openvino(&device.openvino) == Some(DeviceClass::Npu);
    device.programs.is_some() && is_npu
}

/// Returns a SoC with the roles that kernels are given to: a role of CPU programs beside an NPU is the CPU's in all else. The
/// file's properties are the NPU's; the CPU plugin computes in f32, since bf16, which it prefers on some processors, loses the
/// angles of rotary positions.
pub(crate) fn as_played(mut soc: Soc) -> Soc {
    for device in &mut soc.devices {
        if has_npu_beside(device) {
            "CPU".clone_into(&mut device.openvino);
            device.properties = [("INFERENCE_PRECISION_HINT", "f32")]
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into();
            device.mha_properties.clear();
        }
    }
    soc
}

/// Returns the properties that a device's file sets for a variant of a kernel of a group.
pub(crate) fn properties_of<'d>(
    device: &'d Device,
    group: Group,
    variant: &Variant,
) -> impl Iterator<Item = (&'d String, &'d String)> + use<'d> {
    let narrow = variant.elements().kv.bytes() == 2;
    let own = (group == Group::Mha && narrow).then_some(&device.mha_properties);
    let stays = move |name: &String| own.is_none_or(|own| !own.contains_key(name));
    let shared = device
        .properties
        .iter()
        .filter(move |(name, _)| stays(name));
    let own = own.into_iter().flatten();
    shared.chain(own.filter_map(|(name, value)| value.as_ref().map(|value| (name, value))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use heg_artifacts::SectionId;
    use heg_artifacts::manifest::{Binding, ElementType, ShapeClass};
    use heg_spec::Source;

    #[test]
    fn narrow_attention_replaces_properties_and_leaves_some_to_the_plugin() {
        let text = r#"(name: "test", devices: [(class: Cpu, openvino: "CPU",
            properties: {"A": "1", "B": "2", "C": "3"},
            mha_properties: {"A": None, "B": Some("4"), "D": Some("5")})])"#;
        let soc = Soc::parse(Source {
            file: "test.ron",
            text,
        })
        .unwrap();
        let set = |group, kv_cache| -> Vec<String> {
            let variant = Variant {
                device: DeviceClass::Cpu,
                shape: ShapeClass::Dynamic,
                binding: Binding::Constant,
                activations: ElementType::F32,
                kv_cache,
                takes_trees: false,
                ir: SectionId::of(b"ir"),
                program: None,
                tolerance: 0.05,
                blobs: Vec::new(),
            };
            let properties = properties_of(&soc.devices[0], group, &variant);
            properties
                .map(|(name, value)| format!("{name}={value}"))
                .collect()
        };
        for group in [Group::Qkv, Group::Ffn, Group::Head] {
            assert_eq!(set(group, Some(ElementType::Bf16)), ["A=1", "B=2", "C=3"]);
        }
        assert_eq!(set(Group::Mha, None), ["A=1", "B=2", "C=3"]);
        assert_eq!(
            set(Group::Mha, Some(ElementType::Bf16)),
            ["C=3", "B=4", "D=5"]
        );
    }
}
