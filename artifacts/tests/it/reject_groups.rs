//! Manifests with invalid groups of 4-bit integers, and the message to the user.

use heg_artifacts::Manifest;
use heg_artifacts::manifest::ElementType;
use heg_spec::GroupColumns;

use crate::reject_manifest::check;

/// Turns a weight into 4-bit integers, with its values' number of bytes unchanged.
fn four_bits(manifest: &mut Manifest, element: ElementType, group: Option<GroupColumns>) {
    let weight = &mut manifest.weights[1];
    weight.element = element;
    weight.shape = vec![8, 32];
    weight.group_columns = group;
}

#[test]
fn weights_in_groups() {
    let [small, middle, _] = GroupColumns::ALL;
    let expected = "`weights[1].group_columns` is `None`, expected columns of a group for U4";
    check(expected, |manifest| {
        four_bits(manifest, ElementType::U4, None)
    });
    let expected = "`weights[1].group_columns` is `64`, expected a divisor of `32` columns";
    check(expected, |manifest| {
        four_bits(manifest, ElementType::I4, Some(middle));
    });
    let expected = "`weights[1].group_columns` is `32`, expected `None` for I8";
    check(expected, |manifest| {
        four_bits(manifest, ElementType::I8, Some(small));
    });
    let expected =
        "`weights[1].scales` is a section of `64` bytes, expected `16` bytes for [8, 1] of F16";
    check(expected, |manifest| {
        four_bits(manifest, ElementType::U4, Some(small));
    });
    let expected = "`weights[1].values` is a section of `128` bytes, expected `256` bytes for \
                    [16, 32] of I4";
    check(expected, |manifest| {
        four_bits(manifest, ElementType::I4, Some(small));
        manifest.weights[1].shape[0] = 16;
    });
}

#[test]
fn parameters_in_groups() {
    let change = |manifest: &mut Manifest, element, group| {
        let parameter = &mut manifest.kernels[0].parameters[0];
        parameter.element = element;
        parameter.shape = vec![8, 32];
        parameter.group_columns = group;
    };
    let [small, ..] = GroupColumns::ALL;
    let expected = "`kernels[0].parameters[0].group_columns` is `None`, \
                    expected columns of a group for U4";
    check(expected, |manifest| change(manifest, ElementType::U4, None));
    let expected = "`kernels[0].parameters[0].centred` is `true`, expected `false`, as I4 says";
    check(expected, |manifest| {
        change(manifest, ElementType::I4, Some(small))
    });
}
