"""Modules and functions of CUDA: loaded code, owned or borrowed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cuda_async.driver.cuda.api import cu
from cuda_async.driver.cuda.stream import CudaFunction
from cuda_async.driver.interface import DriverFunction, DriverModule

if TYPE_CHECKING:
    from cuda_async.driver.cuda.device import CudaDriver

__all__ = ("OPT_IN_SHARED_BYTES", "BorrowedFunction", "CudaModule", "ModuleFunction")

OPT_IN_SHARED_BYTES = 48 << 10
"""Bytes of dynamic shared memory of a block, above which a function has to opt in (`cuFuncSetAttribute`)."""


class CudaModule(DriverModule):
    """A loaded module.

    When nobody refers to it any more, the driver's next `collect` unloads it, unless it is borrowed.
    """

    __slots__ = ("_driver", "_owned", "handle")

    def __init__(self, driver: CudaDriver, handle: Any, *, owned: bool) -> None:
        self._driver = driver
        self._owned = owned
        self.handle = handle

    @classmethod
    def load(cls, driver: CudaDriver, image: bytes) -> CudaModule:
        """Load a cubin, a fat binary or PTX.

        Raises DriverError where the driver refuses it.
        """
        return cls(driver, driver.context.call(cu.cuModuleLoadData, image), owned=True)

    def function(self, name: str) -> DriverFunction:
        handle = self._driver.context.call(cu.cuModuleGetFunction, self.handle, name.encode())
        return ModuleFunction(self._driver, self, handle)

    @property
    def raw(self) -> int:
        return int(self.handle)

    def __del__(self) -> None:
        if getattr(self, "_owned", False):  # the attribute is missing if `__init__` was interrupted
            self._driver.garbage.append((cu.cuModuleUnload, self.handle))


class ModuleFunction(CudaFunction, DriverFunction):
    """A kernel of a `CudaModule`, which may have other users, and unloads itself."""

    __slots__ = ()

    def __init__(self, driver: CudaDriver, module: CudaModule | None, handle: Any) -> None:
        super().__init__(driver, module, handle)

    @property
    def parameter_sizes(self) -> tuple[int, ...] | None:
        ask = getattr(cu, "cuFuncGetParamInfo", None)  # since CUDA 12.4
        if ask is None:
            return None
        sizes: list[int] = []
        invalid = cu.CUresult.CUDA_ERROR_INVALID_VALUE
        context = self._driver.context
        context.enter()
        try:
            while True:
                try:
                    code, *facts = ask(self.handle, len(sizes))
                except RuntimeError:  # the bindings know the call, the driver is too old for it
                    return None
                if code == invalid:  # there is no parameter of this number: all sizes are known
                    return tuple(sizes)
                if code != cu.CUresult.CUDA_SUCCESS:
                    return None
                sizes.append(int(facts[1]))  # behind the parameter's offset
        finally:
            context.leave()

    def allow_shared(self, nbytes: int) -> None:
        if nbytes > OPT_IN_SHARED_BYTES:
            attribute = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            self._driver.context.call(cu.cuFuncSetAttribute, self.handle, attribute, nbytes)

    @property
    def raw(self) -> int:
        return int(self.handle)

    def __del__(self) -> None:
        """Do nothing, unlike a `CudaFunction`: the module unloads itself."""


class BorrowedFunction(ModuleFunction):
    """A kernel of a module that its owner loaded, and unloads."""

    __slots__ = ()

    def __init__(self, driver: CudaDriver, raw: int) -> None:
        super().__init__(driver, None, cu.CUfunction(raw))
