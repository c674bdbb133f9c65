//! Values by field number. Other values are available only through their own functions.

use core::ffi::c_int;

use aliquot_abi::nvml::{nvmlDevice_t, nvmlFieldValue_t, nvmlReturn_t};

use crate::Done;
use crate::caller::{get, put};
use crate::session::{device, index_of, machine};

/// `NVML_FI_DEV_GET_GPU_RECOVERY_ACTION`.
const RECOVERY_ACTION: u32 = 230;
/// `NVML_VALUE_TYPE_UNSIGNED_INT`.
const UNSIGNED_INT: u32 = 1;

pub(crate) fn nvmlDeviceGetFieldValues(handle: nvmlDevice_t, count: c_int, values: *mut nvmlFieldValue_t) -> Done {
    let index = index_of(handle)?;
    let is_instance = device(handle)?.gpu.is_some();
    let count = usize::try_from(count).map_err(|_| nvmlReturn_t::INVALID_ARGUMENT)?;
    for at in 0..count {
        let asked = values.wrapping_add(at);
        let field = get(asked)?;
        let answer = match field.field_id {
            RECOVERY_ACTION if !is_instance => {
                let mut value = [0; 8];
                value[..4].copy_from_slice(&machine()?.recovery_action(index).to_ne_bytes());
                nvmlFieldValue_t { value_type: UNSIGNED_INT, nvml_return: nvmlReturn_t::SUCCESS, value, ..field }
            }
            _ => nvmlFieldValue_t { nvml_return: nvmlReturn_t::NOT_SUPPORTED, ..field },
        };
        put(asked, answer)?;
    }
    Ok(())
}
